"""The keeper of the jail: a process of its own that runs untrusted programs, one at a time.

Run as a script by `Sandbox`, without rlcore's environment and packages: only the standard library is there.
First line in: the set-up; every further one: a job; each is answered by one line of JSON.

The keeper moves into namespaces of its own (mounts, network, IPC, host name; as an ordinary user: of users
too) and into a root of its own, which holds nothing but the interpreter and the system's libraries, all
read-only. Each job gets a process namespace, whose death takes everything with it that the program has left
behind, and an empty /tmp of limited size. The program itself has a user id without any privilege, limits, no
new privileges, a filter of system calls, an empty environment, and no descriptor but its three.
"""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seccomp  # type: ignore[import-not-found]  # beside this file, which is no part of a package here

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_SETATTR = 442
READ_ONLY, NO_SUID, NO_DEV = 1, 2, 4
SET_DEATH_SIGNAL, SET_NO_NEW_PRIVS, SET_SUBREAPER = 1, 38, 36

ROOT = "/proc"
"""Where the new root is put together: a directory that is always there, and not shown in the new one."""

DEVICES = ("null", "zero", "urandom")
NOBODY = 65534
FIRST_UID = 2_000_000
"""Ids of programs where the keeper is root: one for each, so that limits of processes count its own alone."""

Outputs = tuple[int, int, int]
"""Descriptors to write to: the program's stdout, its stderr, and why it could not begin."""

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


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


def restrict(path: str, attributes: int) -> None:
    """Takes rights from a mount and all below it."""
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    buffer = ctypes.create_string_buffer(wanted, len(wanted))
    size = ctypes.c_size_t(len(wanted))
    done = LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, buffer, size)
    check(done, f"mount_setattr {path}")


def enter_namespaces() -> None:
    """As root without a namespace of users, so that programs can get ids that are nobody's."""
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


def build_root(folders: list[str]) -> None:
    """A root of its own with `folders`, the devices that do no harm, and an empty /tmp."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("jail", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in folders:
        show(path)
    os.makedirs(f"{ROOT}/dev")
    for device in DEVICES:
        with open(f"{ROOT}/dev/{device}", "w"):
            pass
        mount(f"/dev/{device}", f"{ROOT}/dev/{device}", None, MS_BIND)
    os.mkdir(f"{ROOT}/tmp")
    os.mkdir(f"{ROOT}/old")
    os.chdir(ROOT)
    check(LIBC.pivot_root(b".", b"old"), "pivot_root")
    os.chdir("/")
    check(LIBC.umount2(b"/old", MNT_DETACH), "umount2")
    os.rmdir("/old")
    restrict("/", READ_ONLY | NO_SUID)


def show(path: str) -> None:
    """Puts one of the machine's folders or files into the new root, read-only; a link stays one."""
    there = ROOT + path
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


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when `parent` is gone."""
    check(LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def become_program(setup: dict[str, Any], job: dict[str, Any], outputs: Outputs, uid: int) -> NoReturn:
    """The last steps on this side of trust."""
    os.setsid()
    stdin = os.memfd_create("stdin")
    os.write(stdin, job["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    stdout, stderr, faults = outputs
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target)
    os.closerange(3, faults)  # which closes itself where the program begins
    os.closerange(faults + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.chdir(job["folder"])
    mib = 1 << 20
    limits = {
        resource.RLIMIT_CPU: int(setup["seconds"]) + 1,
        resource.RLIMIT_AS: setup["memory_mib"] * mib,
        resource.RLIMIT_FSIZE: setup["files_mib"] * mib,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    resource.setrlimit(resource.RLIMIT_NPROC, (setup["processes"], setup["processes"]))
    check(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    seccomp.install(LIBC)
    os.execve(setup["python"], [setup["python"], "-s", "-P", "-B", f"{job['folder']}/main.py"], ENVIRONMENT)


def guard(setup: dict[str, Any], job: dict[str, Any], outputs: Outputs, uid: int) -> int:
    """Starts the program and reaps what is orphaned, until the program itself ends; its exit code."""
    job["folder"] = "/tmp" if setup["isolated"] else job["folder"]
    if setup["isolated"]:
        size = f"size={setup['files_mib']}m,nr_inodes=4096,mode=1777"
        mount("tmp", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size)
    with open(f"{job['folder']}/main.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(job["source"])
    os.chmod(file.name, 0o644)
    program = os.fork()
    if not program:
        try:
            become_program(setup, job, outputs, uid)
        except BaseException as error:
            os.write(outputs[2], str(error).encode())
            os._exit(1)
    for output in outputs[:2]:  # the third one's end says that all of the program has ended
        os.close(output)
    while True:
        pid, status = os.wait()
        if pid == program:
            return os.waitstatus_to_exitcode(status) % 256


def run(setup: dict[str, Any], job: dict[str, Any], uid: int) -> dict[str, Any]:
    """Runs a job in a process namespace of its own; how it ended, and what it wrote."""
    pipes = [os.pipe(), os.pipe(), os.pipe()]
    outputs = (pipes[0][1], pipes[1][1], pipes[2][1])
    if setup["isolated"]:
        check(LIBC.unshare(NEW_PID | NEW_NS), "unshare")
    else:
        check(LIBC.prctl(SET_SUBREAPER, 1, 0, 0, 0), "prctl")
    me = os.getpid()
    init = os.fork()
    if not init:
        try:
            if setup["isolated"]:
                check(LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
            else:
                os.setpgid(0, 0)
                die_with(me)
            for read, _ in pipes:
                os.close(read)
            os._exit(guard(setup, job, outputs, uid))
        except BaseException as error:
            os.write(outputs[2], str(error).encode())
            os._exit(1)
    for output in outputs:
        os.close(output)
    texts, how = collect([read for read, _ in pipes], setup, init)
    code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    if not setup["isolated"]:
        kill_orphans()
    stdout, stderr, faults = (text.decode("utf-8", "replace") for text in texts)
    if faults:
        return {"error": faults}
    return {"how": how, "code": code, "stdout": stdout, "stderr": stderr[-2000:]}


def collect(pipes: list[int], setup: dict[str, Any], init: int) -> tuple[list[bytes], str]:
    """What comes out of `pipes` until both end; kills `init` at the limit of time or output."""
    texts = {pipe: bytearray() for pipe in pipes}
    deadline, how = time.monotonic() + setup["seconds"], "ended"
    waiting = set(pipes)
    while waiting:
        left = deadline - time.monotonic()
        ready = select.select(waiting, [], [], max(left, 0))[0] if how == "ended" else []
        if not ready:
            how = "timeout" if how == "ended" else how
            break
        for pipe in ready:
            data = os.read(pipe, 65536)
            texts[pipe] += data
            if not data:
                waiting.discard(pipe)
            if len(texts[pipe]) > setup["output_kib"] * 1024:
                how = "output"
    if how != "ended":
        os.kill(init, signal.SIGKILL)
    for pipe in pipes:
        os.close(pipe)
    return [bytes(text) for text in texts.values()], how


def kill_orphans() -> None:
    """Without a process namespace: what the program left behind has become this process's own."""
    for _ in range(100):
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            left = file.read().split()
        if not left:
            return
        for pid in map(int, left):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def serve(setup: dict[str, Any]) -> None:
    for number, line in enumerate(sys.stdin):
        me = os.getpid()
        worker = os.fork()
        if not worker:
            try:
                die_with(me)
                say(run(setup, json.loads(line), FIRST_UID + me % 100_000 * 10 + number % 10))
                os._exit(0)
            except BaseException as error:
                say({"error": str(error)})
                os._exit(0)
        os.waitpid(worker, 0)


def main() -> None:
    os.umask(0o022)
    setup = json.loads(sys.stdin.readline())
    die_with(setup["parent"])
    try:
        if setup["isolated"]:
            enter_namespaces()
            build_root(setup["folders"])
    except OSError as error:
        say({"error": str(error.strerror or error)})
        return
    say({})
    serve(setup)


if __name__ == "__main__":
    main()
