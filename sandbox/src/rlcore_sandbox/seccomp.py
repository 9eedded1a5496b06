"""A filter of system calls for untrusted programs: what no unit test needs, and every escape begins with.

Only the standard library: this is imported inside the jail. The rest of the isolation does not rest on it,
but where a kernel has no namespaces it is what keeps programs off the network.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

NAMES = (
    *("socket", "ptrace", "mount", "umount2", "unshare", "setns", "keyctl", "add_key", "request_key", "bpf"),
    *("perf_event_open", "userfaultfd", "io_uring_setup", "process_vm_readv", "process_vm_writev", "kcmp"),
    *("shmget", "msgget", "semget", "mq_open", "memfd_create", "pidfd_getfd", "open_by_handle_at"),
)
"""Refused with EPERM. The shared memories would escape the limit of a process's address space."""

_NUMBERS = {
    "x86_64": (
        *(41, 101, 165, 166, 272, 308, 250, 248, 249, 321),
        *(298, 323, 425, 310, 311, 312),
        *(29, 68, 64, 240, 319, 438, 304),
    ),
    "aarch64": (
        *(198, 117, 40, 39, 97, 268, 219, 217, 218, 280),
        *(241, 282, 425, 270, 271, 272),
        *(194, 186, 190, 180, 279, 438, 265),
    ),
}
"""Machine → the numbers of `NAMES`, from the kernel's tables."""

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NAMESPACES = 0x7E020000
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_SET_SECCOMP, _FILTER = 22, 2


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _NUMBERS


def install(libc: ctypes.CDLL) -> None:
    """Filters the system calls of this process and all that it starts. It must have no new privileges."""
    code = b"".join(_program(platform.machine()))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _program(machine: str) -> Iterator[bytes]:
    def step(code: int, value: int, then: int = 0, other: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, other, value)

    refuse = step(_RETURN, _ERRNO | errno.EPERM)
    yield step(_LOAD, 4)  # the architecture of the call
    yield step(_EQUAL, _ARCH[machine], 1, 0)
    yield step(_RETURN, _KILL)
    yield step(_LOAD, 0)  # its number
    yield step(_AT_LEAST, _X32, 0, 1)
    yield refuse
    for number in _NUMBERS[machine]:
        yield step(_EQUAL, number, 0, 1)
        yield refuse
    yield step(_EQUAL, _CLONE3, 0, 1)  # its flags are out of sight: the C library falls back on clone
    yield step(_RETURN, _ERRNO | errno.ENOSYS)
    yield step(_EQUAL, _CLONE[machine], 0, 3)
    yield step(_LOAD, 16)  # clone's flags
    yield step(_ANY_BIT, _NAMESPACES, 0, 1)
    yield refuse
    yield step(_RETURN, _ALLOW)
