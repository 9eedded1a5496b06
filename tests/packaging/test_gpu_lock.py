"""requirements-gpu.txt: what the members ask for is in it, and it is what uv resolves."""

import shutil
from pathlib import Path

import gpu_lock
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlcore_doctor.lock import requirements

NO_NETWORK = ("error sending request", "the network was disabled")


def test_the_lock_has_a_fitting_version_of_all_that_the_members_ask_for() -> None:
    locked = {canonicalize_name(one.name): str(one.specifier)[2:] for one in requirements(gpu_lock.LOCK)}
    asked = [Requirement(one) for one in gpu_lock.requirements()]
    assert {"torch", "megatron-core", "ray", "sglang"} <= {one.name for one in asked}
    unfit = [
        str(one)
        for one in asked
        if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"), prereleases=True)
    ]
    assert not unfit, "run `python scripts/gpu_lock.py`"


@pytest.mark.full
def test_uv_resolves_the_lock(tmp_path: Path) -> None:
    """Anew from the metadata on PyPI, where its own versions are preferred: none is lacking or unfit."""
    lock = tmp_path / "lock.txt"
    shutil.copy(gpu_lock.LOCK, lock)
    done = gpu_lock.resolve(lock)
    if done.returncode and any(reason in done.stderr for reason in NO_NETWORK):
        pytest.skip(f"without PyPI: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert lock.read_text() == gpu_lock.LOCK.read_text(), "run `python scripts/gpu_lock.py`"
