"""The server's command, and the checks before a process starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
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
    assert line.endswith("--max-batch 512 --seed 3 --device cpu --threads 2 --weights-dir /weights")
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


@pytest.mark.parametrize(
    ("device", "has_gpu", "devices"),
    [("auto", True, 1), ("auto", False, 1), ("cpu", True, 0), ("cuda", True, 1)],
)
def test_the_server_takes_a_gpu_where_there_is_one(
    device: Any, has_gpu: bool, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    engine = LocalEngine(LocalConfig(device=device))
    assert engine.devices({}) == devices
    engine.check({})
    on_gpu = device == "cuda" or (device == "auto" and has_gpu)
    assert f"--device {'cuda' if on_gpu else 'cpu'}" in " ".join(engine.command(launch()).argv)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--engine\.device: found cuda, but torch finds no GPU here"):
        LocalEngine(LocalConfig(device="cuda")).check({})
