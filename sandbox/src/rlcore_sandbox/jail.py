"""The keeper of the jail: a process of its own that runs untrusted programs, one at a time.

Run as a script by `Sandbox`, without rlcore's environment and packages: only the standard library is there.
First line in: the set-up; every further one: a job; each is answered by one line of JSON.

The keeper moves into namespaces of its own (mounts, network, IPC, host name; as an ordinary user: of users
too) and into a root of its own, which holds nothing but the interpreter and the system's libraries, all
read-only. Each job gets a process namespace, whose death takes everything with it that the program has left
behind, and an empty /tmp of limited size. The program itself has a user id without any privilege, limits, no
new privileges, a filter of system calls, an empty environment, and no descriptor but its three.

A job is `files`, of which main.py is run, the interpreter's `flags`, and `stdin`; without isolation also
the `folder` to run in. With `argv` it is a command instead, run in `folder` with the variables of
`environment`; its `limits` go before the set-up's. Or it is a pair, `judge` and `program`: two jobs at the
same time, each in a jail of its own. Two pipes join them: the descriptors 3 (to read) and 4 (to write) of
the judge, and standard input and output of the program. The answer is the judge's, and the program dies
with it.

The set-up may name `writable` folders (path inside → folder of the machine). Then all jobs have one user
id, and each finds these folders as the one before left them.
"""

import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from rlcore_sandbox import namespaces, seccomp
    from rlcore_sandbox.namespaces import LIBC, check, mount
else:  # they stand beside this file, which is no part of a package here
    import namespaces
    import seccomp
    from namespaces import LIBC, check, mount

SET_NO_NEW_PRIVS, SET_SUBREAPER = 38, 36

HIGH = 64
"""Descriptors from here on are out of the way of those that a program gets."""

FIRST_UID = 2_000_000
"""Ids of programs where the keeper is root: one for each, so that limits of processes count its own alone."""

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def become_program(
    setup: dict[str, Any], job: dict[str, Any], inner: Sequence[int], faults: int, uid: int
) -> NoReturn:
    """The last steps on this side of trust. `inner` become the program's descriptors, from 0 on."""
    os.setsid()
    inner = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in inner]
    for target, source in enumerate(inner):
        os.dup2(source, target)
    os.closerange(len(inner), faults)  # which closes itself where the program begins
    os.closerange(faults + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.chdir(job["folder"])
    setup = {**setup, **job.get("limits", {})}
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
    if "argv" in job:
        os.execve(job["argv"][0], job["argv"], {**ENVIRONMENT, **job["environment"]})
    argv = [setup["python"], *job["flags"], f"{job['folder']}/main.py"]
    os.execve(setup["python"], argv, ENVIRONMENT)


def guard(setup: dict[str, Any], job: dict[str, Any], inner: Sequence[int], faults: int, uid: int) -> int:
    """Starts the program and reaps what is orphaned, until the program itself ends; its exit code."""
    job["folder"] = "/tmp" if setup["isolated"] and "argv" not in job else job["folder"]
    if setup["isolated"] and "/tmp" not in setup["writable"]:
        size = f"size={setup['files_mib']}m,nr_inodes=4096,mode=1777"
        mount("tmp", "/tmp", "tmpfs", namespaces.MS_NOSUID | namespaces.MS_NODEV, size)
    if setup["writable"]:
        namespaces.show_own_processes()
    for name, text in job.get("files", {}).items():
        with open(f"{job['folder']}/{name}", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        os.chmod(file.name, 0o644)
    program = os.fork()
    if not program:
        try:
            become_program(setup, job, inner, faults, uid)
        except BaseException as error:
            os.write(faults, str(error).encode())
            os._exit(1)
    for descriptor in inner:  # but not `faults`, whose end says that all of the program has ended
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == program:
            return os.waitstatus_to_exitcode(status) % 256


def run(
    setup: dict[str, Any],
    job: dict[str, Any],
    uid: int,
    *,
    pipes: tuple[int, int] | None = None,
    more: Sequence[int] = (),
    stop: int | None = None,
) -> dict[str, Any]:
    """Runs a job in a process namespace of its own; how it ended, and what it wrote.

    `pipes` are its standard input and output, instead of `job["stdin"]` and the answer's `stdout`. `more` are
    further descriptors. With `stop` the end of that one ends the job, and not the clock.
    """
    errors, faults = os.pipe(), os.pipe()
    reads = {"stderr": errors[0], "faults": faults[0]}
    if pipes is None:
        output = os.pipe()
        reads["stdout"] = output[0]
        pipes = (memory_file(job["stdin"]), output[1])
    inner, fault = [*pipes, errors[1], *more], fcntl.fcntl(faults[1], fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(faults[1])
    if setup["isolated"]:
        check(LIBC.unshare(namespaces.NEW_PID | namespaces.NEW_NS), "unshare")
    else:
        check(LIBC.prctl(SET_SUBREAPER, 1, 0, 0, 0), "prctl")
    me = os.getpid()
    init = os.fork()
    if not init:
        try:
            if setup["isolated"]:
                check(LIBC.prctl(namespaces.SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
            else:
                os.setpgid(0, 0)
                namespaces.die_with(me)
            for read in (*reads.values(), *([stop] if stop is not None else [])):
                os.close(read)
            os._exit(guard(setup, job, inner, fault, uid))
        except BaseException as error:
            os.write(fault, str(error).encode())
            os._exit(1)
    for descriptor in (*inner, fault):
        os.close(descriptor)
    texts, how = collect(reads, {**setup, **job.get("limits", {})}, init, stop)
    code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    if texts["faults"]:
        return {"error": texts["faults"]}
    return {"how": how, "code": code, "stdout": texts.get("stdout", ""), "stderr": texts["stderr"][-2000:]}


def memory_file(text: str) -> int:
    """A file without a name, to be read from its start."""
    file = os.memfd_create("stdin")
    os.write(file, text.encode("utf-8", "surrogatepass"))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def run_pair(setup: dict[str, Any], job: dict[str, Any], uid: int) -> dict[str, Any]:
    """Runs the judge here and the program in a child, which is told to end once the judge has."""
    requests, answers, stop, result = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    me = os.getpid()
    child = os.fork()
    if not child:
        try:
            namespaces.die_with(me)
            for descriptor in (requests[1], answers[0], stop[1], result[0]):
                os.close(descriptor)
            done = run_alone(setup, job["program"], uid + 1, pipes=(requests[0], answers[1]), stop=stop[0])
            os.write(result[1], json.dumps(done.get("error", "")).encode())
        finally:
            os._exit(0)
    for descriptor in (requests[0], answers[1], stop[0], result[1]):
        os.close(descriptor)
    done = run(setup, job["judge"], uid, more=(answers[0], requests[1]))
    os.close(stop[1])
    with open(result[0], "rb") as told:
        error = json.loads(told.read() or '"the keeper of the program died"')
    os.waitpid(child, 0)
    return {"error": error} if error else done


def run_alone(setup: dict[str, Any], job: dict[str, Any], uid: int, **more: Any) -> dict[str, Any]:
    """Runs a job or a pair, and leaves nothing of it behind."""
    try:
        return run_pair(setup, job, uid) if "judge" in job else run(setup, job, uid, **more)
    except OSError as error:
        return {"error": str(error)}
    finally:
        if not setup["isolated"]:
            kill_orphans()


def collect(
    reads: dict[str, int], setup: dict[str, Any], init: int, stop: int | None
) -> tuple[dict[str, str], str]:
    """What comes out of the pipes until all end; kills `init` at a limit of time or output, or at `stop`."""
    texts = {pipe: bytearray() for pipe in reads.values()}
    deadline, how = time.monotonic() + setup["seconds"], "ended"
    waiting = set(texts)
    while waiting and how == "ended":
        left = None if stop is not None else max(deadline - time.monotonic(), 0)
        ready = select.select([*waiting, *([stop] if stop is not None else [])], [], [], left)[0]
        if not ready or stop in ready:
            how = "timeout" if not ready else "stopped"
        for pipe in waiting.intersection(ready):
            data = os.read(pipe, 65536)
            texts[pipe] += data
            if not data:
                waiting.discard(pipe)
            if len(texts[pipe]) > setup["output_kib"] * 1024:
                how = "output"
    if how != "ended":
        os.kill(init, signal.SIGKILL)
    for pipe in texts:
        os.close(pipe)
    return {name: texts[pipe].decode("utf-8", "replace") for name, pipe in reads.items()}, how


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
                namespaces.die_with(me)
                number = 0 if setup["writable"] else number % 10
                say(run_alone(setup, json.loads(line), FIRST_UID + me % 100_000 * 20 + number * 2))
                os._exit(0)
            except BaseException as error:
                say({"error": str(error)})
                os._exit(0)
        os.waitpid(worker, 0)


def main() -> None:
    os.umask(0o022)
    setup = json.loads(sys.stdin.readline())
    namespaces.die_with(setup["parent"])
    try:
        if setup["isolated"]:
            namespaces.enter_namespaces()
            namespaces.build_root(setup["folders"], setup["writable"], setup["system"])
    except OSError as error:
        say({"error": str(error.strerror or error)})
        return
    say({})
    serve(setup)


if __name__ == "__main__":
    main()
