"""Namespaces, mounts and the root of the jail's keeper (`jail.py`). Only the standard library."""

import contextlib
import ctypes
import os
import signal
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_SETATTR = 442
READ_ONLY, NO_SUID, NO_DEV = 1, 2, 4
SET_DEATH_SIGNAL = 1

ROOT = "/proc"
"""Where the new root is put together: a directory that is always there, and not shown in the new one."""

DEVICES = ("null", "zero", "urandom")
NOBODY = 65534


def check(result: int, what: str) -> int:
    """The result of a C function, or an OSError that names it."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    source_b, target_b, kind_b, data_b = encoded
    check(LIBC.mount(source_b, target_b, kind_b, ctypes.c_ulong(flags), data_b), f"mount {target}")


def restrict(path: str, attributes: int, permit: int = 0) -> None:
    """Takes rights from a mount and all below it; gives back those of `permit`."""
    wanted = struct.pack("QQQQ", attributes, permit, 0, 0)
    buffer = ctypes.create_string_buffer(wanted, len(wanted))
    size = ctypes.c_size_t(len(wanted))
    done = LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, buffer, size)
    check(done, f"mount_setattr {path}")


def enter_namespaces() -> None:
    """Root gets no namespace of users, so that programs can get ids that are nobody's."""
    uid, gid, flags = os.geteuid(), os.getegid(), NEW_NS | NEW_NET | NEW_IPC | NEW_UTS
    if uid == 0:
        check(LIBC.unshare(flags), "unshare")
        return
    check(LIBC.unshare(flags | NEW_USER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build_root(folders: list[str], writable: dict[str, str], system: str) -> None:
    """A root of its own with `folders` of `system`, the devices that do no harm, and an empty /tmp.

    `writable`: path in the new root → folder of the machine.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("jail", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in folders:
        if path not in writable:
            show(path, system)
    os.makedirs(f"{ROOT}/dev")
    for device in DEVICES:
        with open(f"{ROOT}/dev/{device}", "w"):
            pass
        mount(f"/dev/{device}", f"{ROOT}/dev/{device}", None, MS_BIND)
    os.mkdir(f"{ROOT}/tmp")
    if writable:
        os.mkdir(f"{ROOT}/proc")
    for path, folder in writable.items():
        os.makedirs(ROOT + path, exist_ok=True)
        mount(folder, ROOT + path, None, MS_BIND)
    os.mkdir(f"{ROOT}/old")
    os.chdir(ROOT)
    check(LIBC.pivot_root(b".", b"old"), "pivot_root")
    os.chdir("/")
    check(LIBC.umount2(b"/old", MNT_DETACH), "umount2")
    os.rmdir("/old")
    restrict("/", READ_ONLY | NO_SUID)
    for path in writable:
        restrict(path, NO_SUID | NO_DEV, permit=READ_ONLY)


def show(path: str, system: str) -> None:
    """Puts one of `system`'s folders or files into the new root, read-only; a link stays one."""
    there, path = ROOT + path, system + path
    if os.path.lexists(there) or not os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(there), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), there)
        return
    if os.path.isdir(path):
        os.makedirs(there, exist_ok=True)
    else:
        with open(there, "w"):
            pass
    mount(path, there, None, MS_BIND | MS_REC)
    restrict(there, READ_ONLY | NO_SUID | NO_DEV)


def show_own_processes() -> None:
    """Mounts /proc for the process namespace, where the kernel allows it: it does for root.

    Commands need it to find the libraries beside a program. It can be read alone, and shows no other process.
    """
    with contextlib.suppress(OSError):
        mount("proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when `parent` is gone."""
    check(LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)
