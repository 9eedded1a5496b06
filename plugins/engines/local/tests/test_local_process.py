"""How the server starts and ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waits import eventually, gone

from rlcore_testing.programs import ran

TOKEN = "a-token"
LIMIT = 60.0
COMMAND = [sys.executable, "-m", "rlcore_local", "--model-path"]


def environment(token: str = TOKEN) -> dict[str, str]:
    return {**os.environ, "RLCORE_ENGINE_TOKEN": token, "OMP_NUM_THREADS": "1"}


@pytest.mark.full
def test_it_ends_at_once_by_a_signal_and_soon_after_its_parent(letters_path: Path) -> None:
    # Both at the same time, because starting is what takes long.
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [*COMMAND, str(letters_path)]
    pipes: dict[str, Any] = {
        "env": environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
    }
    parent = subprocess.Popen([sys.executable, "-c", code, *command], **pipes)
    server = subprocess.Popen(command, **pipes)
    try:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["port"] > 0
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=LIMIT) == 0
        assert time.monotonic() - began < 2
        # The orphan holds no pipe of ours but stderr's replacement, so this ends with its parent.
        orphan = int(parent.communicate(timeout=LIMIT)[0])
        eventually(lambda: gone(orphan))
    finally:
        for process in (server, parent):
            process.kill()
            process.communicate(timeout=LIMIT)


@pytest.mark.parametrize(
    ("extra", "token", "message"),
    [
        (["--dtype", "fp8"], TOKEN, "--dtype: "),
        (["--max-batch", "0"], TOKEN, "--max-batch: "),
        ([], "", "RLCORE_ENGINE_TOKEN must hold"),
        pytest.param([], TOKEN, "has no config.json.", marks=pytest.mark.full),  # it imports torch first
    ],
)
def test_what_the_user_can_mend_exits_with_2(
    extra: list[str], token: str, message: str, tmp_path: Path
) -> None:
    done = ran(*COMMAND, str(tmp_path), *extra, limit_s=LIMIT, env=environment(token))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
