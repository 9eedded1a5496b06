"""The server's command, and the checks before a process starts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launches import TOKEN, launch

from rlcore.api.engine import TOKEN_VARIABLE
from rlcore.api.errors import ConfigError
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine


def test_a_server_of_its_own_context_without_publications() -> None:
    line = " ".join(LocalEngine(LocalConfig()).command(launch(context_length=None, weights_dir=None)).argv)
    assert "--context-length" not in line
    assert "--weights-dir" not in line


def test_the_local_command_keeps_the_token_from_its_arguments() -> None:
    command = LocalEngine(LocalConfig(threads=2)).command(launch())
    line = " ".join(command.argv)
    assert line.endswith("--max-batch 512 --seed 3 --threads 2 --weights-dir /weights")
    assert TOKEN not in line + repr(command) + repr(launch())
    assert command.env[TOKEN_VARIABLE] == TOKEN


def test_fields_of_a_table_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--sglang\.tp_size has no effect with --engine local"):
        LocalEngine(LocalConfig()).check({"tp_size": 2}, table="sglang")


def test_importing_the_engine_needs_no_torch() -> None:
    code = (
        "import sys, rlcore_local.plugin, rlcore_local.engine\n"
        "sys.exit(bool({'torch', 'ray', 'transformers', 'aiohttp'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
