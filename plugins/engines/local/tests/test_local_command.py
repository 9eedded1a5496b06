"""The server's command, and the checks before a process starts."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from launches import TOKEN, launch

from rlcore import TOKEN_VARIABLE, ConfigError
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_local.loading import device_named


def test_a_server_of_its_own_context_without_publications() -> None:
    line = " ".join(LocalEngine(LocalConfig()).command(launch(context_length=None, weights_dir=None)).argv)
    assert "--context-length" not in line
    assert "--weights-dir" not in line


def test_the_local_command_keeps_the_token_from_its_arguments() -> None:
    command = LocalEngine(LocalConfig(threads=2)).command(launch())
    line = " ".join(command.argv)
    assert line.endswith("--max-batch 512 --seed 3 --device auto --threads 2 --weights-dir /weights")
    assert TOKEN not in line + repr(command) + repr(launch())
    assert command.env[TOKEN_VARIABLE] == TOKEN


def test_fields_of_a_table_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--sglang\.tp_size has no effect with --engine local"):
        LocalEngine(LocalConfig()).check({"tp_size": 2}, table="sglang")


def test_the_engine_needs_no_torch_to_start_its_server() -> None:
    """Which imports it: nothing else would, where the server is started."""
    code = (
        "import sys, rlcore_local.plugin\n"
        "from launches import launch\n"
        "from rlcore_local.config import LocalConfig\n"
        "from rlcore_local.engine import LocalEngine\n"
        "LocalEngine(LocalConfig()).command(launch())\n"
        "sys.exit(bool({'torch', 'ray', 'transformers', 'aiohttp'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


@pytest.mark.parametrize(("device", "devices"), [("auto", 1), ("cpu", 0), ("cuda", 1)])
def test_the_server_takes_the_device_that_is_asked_for(
    device: Any, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    engine = LocalEngine(LocalConfig(device=device))
    assert engine.devices({}) == devices
    engine.check({})
    assert f"--device {device}" in " ".join(engine.command(launch()).argv)


@pytest.mark.parametrize(
    ("name", "has_gpu", "found"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_server_finds_out_whether_there_is_a_gpu(
    name: str, has_gpu: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device_named(name).type == found


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--engine\.device: found cuda, but torch finds no GPU here"):
        LocalEngine(LocalConfig(device="cuda")).check({})
