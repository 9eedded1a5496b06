"""What a Ray that cannot be had leaves as it was."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from rlcore import WorkerError
from rlcore_ray.cluster import RayCluster
from rlcore_ray.config import RayConfig


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
