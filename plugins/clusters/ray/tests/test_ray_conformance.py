"""The contract of clusters, in a process of its own: Ray reads its settings once in a process's life.

Another test may have imported it here before, without the token that a cluster of the run's own asks for.
"""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_ray_keeps_the_contract_of_clusters() -> None:
    suite = Path(__file__).with_name("ray_conformance.py")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(suite)]
    done = subprocess.run(argv, cwd=suite.parent, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
