"""Keep freed memory in the process."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 32 * 2**20
"""The most that glibc takes from its heap by choice; a larger block is mapped on its own."""


def keep_memory() -> None:
    """Let glibc hand the memory of freed tensors out again instead of returning it to the kernel.

    The kernel zeroes each page of memory that was returned, which for elementwise operations is most of the
    time. No effect where the C library is another one.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, -1)
