"""What a Ray that cannot be had leaves as it was."""

import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from rlcore import WorkerError
from rlcore_ray.cluster import RayCluster
from rlcore_ray.config import RayConfig
from rlcore_toolkit import has_gpu


def test_a_start_that_fails_leaves_the_handlers_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray installs its own first. The run still has to end cleanly."""
    before = signal.getsignal(signal.SIGTERM)
    folders: list[Path] = []

    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        raise RuntimeError("no sockets left")

    monkeypatch.setattr(ray, "init", init)
    cluster = RayCluster(RayConfig())
    try:
        with pytest.raises(WorkerError, match="no sockets left"):
            cluster.connect(cpus=1, gpus=0, remove=folders.append)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)
        cluster.close()
    assert not folders[0].exists()


@pytest.mark.full
def test_a_ray_of_the_run_starts_no_process_that_nobody_asks() -> None:
    cluster = RayCluster(RayConfig())
    try:
        cluster.connect(cpus=1, gpus=0, remove=lambda folder: None)
        started = " ".join(word for child in psutil.Process().children() for word in child.cmdline())
    finally:
        cluster.close()
    assert "gcs_server" in started
    assert not {"dashboard.py", "log_monitor.py", "monitor.py"} & {
        Path(word).name for word in started.split()
    }


@pytest.mark.full
@pytest.mark.skipif(has_gpu(), reason="there, each worker imports for itself")
@pytest.mark.parametrize("is_long", [False, True], ids=["forked", "started"])
def test_workers_are_forks_of_one_that_has_the_imports(
    monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """An environment that is too long for the fork server leaves them to be started as programs."""
    for name in ("ONE", "OTHER"):
        monkeypatch.setenv(name, "x" * 100_000 * is_long)
    cluster = RayCluster(RayConfig())
    try:
        cluster.prepare(["colorsys"])
        cluster.connect(cpus=1, gpus=0, remove=lambda folder: None)
        has_imports = ray.get(ray.remote(lambda: "colorsys" in sys.modules).remote(), timeout=60)
    finally:
        cluster.close()
    assert has_imports != is_long
