import gc
import resource
import subprocess
import sys

import pytest

from rlcore_machine import deferred_collection, settle_heap

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


@pytest.mark.parametrize("settles", [True, False])
def test_no_garbage_is_collected_until_the_imports_are_done(settles: bool) -> None:
    with deferred_collection():
        assert not gc.isenabled()
        if settles:
            settle_heap()
            gc.unfreeze()
        assert gc.isenabled() is settles
    assert gc.isenabled()
