"""What `rlcore doctor` says of Ray."""

from pathlib import Path

import pytest

from rlcore_ray import diagnosis
from rlcore_ray.config import RayConfig


def test_ray_is_started_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "START", "import sys; sys.exit('no sockets left')")
    (one,) = RayConfig().diagnose()
    assert one.found == "fails: no sockets left"
    assert "--cluster processes" in one.remedy
    monkeypatch.setattr(diagnosis, "START", "import time; time.sleep(60)")
    monkeypatch.setattr(diagnosis, "LIMIT_S", 0.2)
    (one,) = RayConfig().diagnose()
    assert one.found == "takes more than 0.2 s"


@pytest.mark.full  # below, one starts too
def test_a_ray_of_its_own_starts() -> None:
    (one,) = RayConfig().diagnose()
    assert one.found.startswith("works with Ray 2.")
    assert not one.remedy


@pytest.mark.full
def test_it_is_as_safe_as_that_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token, without which every user of the machine could run code, and on the loopback alone."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    seen = """
    import os
    [node] = ray.nodes()
    sys.exit(f"{os.environ['RAY_AUTH_MODE']} at {node['NodeManagerAddress']}")
"""
    monkeypatch.setattr(diagnosis, "START", diagnosis.START.replace("    print(ray.__version__)\n", seen))
    (one,) = RayConfig().diagnose()
    assert one.found == "fails: token at 127.0.0.1"


def test_what_a_start_left_behind_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    monkeypatch.setattr(
        diagnosis, "START", f"import time; print({str(folder)!r}, flush=True); time.sleep(60)"
    )
    monkeypatch.setattr(diagnosis, "LIMIT_S", 2.0)
    (one,) = RayConfig().diagnose()
    assert one.found == "takes more than 2 s"
    assert not folder.exists()


def test_a_port_where_nobody_listens() -> None:
    (one,) = RayConfig(address="127.0.0.1:1").diagnose()
    assert one.found.startswith("fails: --cluster.address '127.0.0.1:1': no Ray cluster answers there (")


def test_nobody_answers_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "START", "import sys; sys.exit(f'nobody at {sys.argv[1]}')")
    (one,) = RayConfig(address="10.0.0.1:6379").diagnose()
    assert one.found == "fails: nobody at 10.0.0.1:6379"
