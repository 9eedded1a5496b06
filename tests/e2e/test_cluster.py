"""`--ray-address`: a run in a cluster that is somebody else's, and that outlives it."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import LIMIT_S, SMALL, Run, rows, wait_for

from rlcore.testing.ranks import free_port

# Ray takes the loopback's address for another one unless it is told that no other host takes part.
ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
OURS = ("ray::TrainWorker", "ray::EngineSupervisor", "rlcore.engines.local")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of the cluster and of those who may use it, because they know its token."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    return {**ENV, "RAY_AUTH_TOKEN_PATH": str(token)}


@pytest.fixture
def cluster(env: dict[str, str], tmp_path: Path) -> Iterator[tuple[psutil.Popen, str]]:
    """A Ray head node on the loopback, with its address."""
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "ray.txt"
    folder = tempfile.mkdtemp(prefix="ray-")  # sockets lie in it, whose paths must be short
    host, _, port = address.partition(":")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=3"]
    command += [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={folder}"]
    # Its ranges of ports would hold the one above now and then, or that of another cluster.
    command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    with log.open("w") as out:
        head = psutil.Popen(command, env={**os.environ, **env}, stdout=out, stderr=out)
    try:
        wait_for(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        yield head, address
    finally:
        tree = [head, *head.children(recursive=True)]
        head.terminate()
        _, left = psutil.wait_procs(tree, timeout=20)
        for process in left:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_run_leaves_the_cluster_as_it_was(
    cluster: tuple[psutil.Popen, str], env: dict[str, str], run: Run, tmp_path: Path
) -> None:
    head, address = cluster
    folder = tmp_path / "run"
    flags = ("--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "2", "--ray-address", address)
    run("train", *flags, "--run-dir", str(folder), env=env)
    assert [row["step"] for row in rows(folder)] == [0, 1, 2]
    assert head.poll() is None
    wait_for(lambda: not _lines(head), limit=30)
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    known = {**os.environ, **env, "RAY_AUTH_MODE": "token"}

    def said() -> str:
        done = subprocess.run(status, env=known, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.stdout + done.stderr

    # the cluster counts what was given back with a delay
    wait_for(lambda: "0.0/3.0 CPU" in said())


def _lines(head: psutil.Popen) -> list[str]:
    """What of a run is left among the cluster's processes."""
    lines = []
    for process in head.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if any(name in line for name in OURS)]
