import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from rlcore_machine import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
blocks = [np.ones(1 << 21) for _ in range(8)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [np.ones(1 << 21) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_handed_out_again() -> None:
    """Eight arrays of 16 MiB, in the place of those before."""
    one = (1 << 24) // resource.getpagesize()
    assert faults("keep") < one / 2 < faults("return")
