"""Memory: what the garbage collector leaves alone, what is kept once it is freed, what the host has used."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def defer_collection() -> None:
    """Collect no garbage until `settle_heap`. Call it before the imports of a process.

    They create hardly any garbage, and the collector looks through all that they create again and again: a
    fifth of the time that torch and megatron-core take.
    """
    gc.disable()


@contextlib.contextmanager
def deferred_collection() -> Iterator[None]:
    """`defer_collection` within, for a process that may end its work without having settled."""
    collected = gc.isenabled()
    defer_collection()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def settle_heap() -> None:
    """Call it once, after the imports of a process. Later collections look only at newer objects.

    The imports of torch and transformers create about a million objects. A full collection takes 40 ms
    to look through them in vain, and the objects of a single step can trigger one.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def keep_memory() -> None:
    """Let glibc hand the memory of freed tensors out again instead of returning it to the kernel.

    The kernel zeroes each page of memory that was returned, which for elementwise operations is most of the
    time. No effect where the C library is another one.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)  # a block that is mapped on its own goes back to the kernel when it is freed
        mallopt(_TRIM_THRESHOLD, -1)


def used_host_memory() -> int:
    """Bytes of this host's memory that a new process could not have."""
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)
