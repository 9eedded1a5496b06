"""What `rlcore doctor` says of Ray."""

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


def test_a_ray_of_its_own_starts() -> None:
    (one,) = RayConfig().diagnose()
    assert one.found.startswith("works with Ray 2.")
    assert not one.remedy


def test_nobody_answers_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "START", "import sys; sys.exit(f'nobody at {sys.argv[1]}')")
    (one,) = RayConfig(address="10.0.0.1:6379").diagnose()
    assert one.found == "fails: nobody at 10.0.0.1:6379"
