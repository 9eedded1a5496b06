"""Processes that are forked from one with the imports: what they say, and that none is left."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waits import eventually, gone

from rlcore_machine import ForkServer

LIMIT_S = 30.0
PROGRAM = """
import os, sys, time
from rlcore_machine import ForkServer
server = ForkServer(["json"])
forked = server.fork("time:sleep", [100])
print(forked.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["json", "no_such_module"]) as made:
        yield made


def test_a_process_is_what_was_asked(server: ForkServer, tmp_path: Path) -> None:
    out, read, write = tmp_path / "out", *os.pipe()
    code = "import os, sys; print(os.environ, os.getcwd(), 'json' in sys.modules); print(sys.argv)"
    forked = server.fork("builtins:exec", [code], cwd=tmp_path, env={"NAME": "value"}, out=out)
    assert forked.wait(LIMIT_S) == 0
    told = "'PYTORCH_NVML_BASED_CUDA_CHECK': '1', 'NAME': 'value'"
    assert out.read_text().startswith(f"environ({{{told}}}) {tmp_path} True\n")
    forked = server.fork("os:write", [], [write])
    assert forked.wait(LIMIT_S) == 1, "an argument is missing"
    os.close(write)
    assert os.read(read, 1) == b"", "nobody else holds what was handed over"
    os.close(read)


@pytest.mark.parametrize(
    ("target", "arguments", "code"),
    [
        ("sys:exit", [7], 7),
        ("sys:exit", ["said"], 1),
        ("sys:exit", [], 0),
        ("os:abort", [], -signal.SIGABRT),
        ("no_such_module:main", [], 1),
    ],
)
def test_exit_codes(server: ForkServer, target: str, arguments: list[object], code: int) -> None:
    assert server.fork(target, arguments).wait(LIMIT_S) == code


def test_more_files_may_be_open_than_select_takes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with ForkServer([]) as server:
            assert server.fork("sys:exit", [7]).wait(LIMIT_S) == 7
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("outlives", "code"), [(True, 0), (False, -signal.SIGTERM)])
def test_a_process_may_outlive_signals(server: ForkServer, outlives: bool, code: int) -> None:
    """A program that it starts does not, nor a fork of it."""
    text = (
        "import os, signal, subprocess, time; os.kill(os.getpid(), signal.SIGTERM); "
        "os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGINT); "
        "child = subprocess.Popen(['sleep', '60']); "
        "child.terminate(); assert child.wait() == -signal.SIGTERM\n"
        "fork = os.fork() or time.sleep(60); time.sleep(0.3); os.kill(fork, signal.SIGTERM); "
        "assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == -signal.SIGTERM"
    )
    assert server.fork("builtins:exec", [text], outlives_signals=outlives).wait(LIMIT_S) == code


def test_a_process_runs_until_it_is_ended(server: ForkServer) -> None:
    forked = server.fork("time:sleep", [100])
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    eventually(lambda: os.getsid(forked.pid) == forked.pid)  # its number is told before it has begun
    forked.kill()
    assert forked.wait(LIMIT_S) == forked.poll() == -signal.SIGKILL
    forked.terminate()  # who has ended is not signalled


def test_a_process_of_a_stopped_server_is_killed_once_it_is_there() -> None:
    with ForkServer([]) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        forked = stopped.fork("time:sleep", [100])
        forked.kill()  # and returns
        os.kill(stopped.pid, signal.SIGCONT)
        assert forked.wait(LIMIT_S) == -signal.SIGKILL


def test_a_forked_process_asks_the_same_server(server: ForkServer, tmp_path: Path) -> None:
    """And one of its own is a fork of it, which has what it has imported."""
    code = (
        "import fractions, os; from rlcore_machine import ForkServer\n"
        "print(os.getppid())\n"
        "inner = 'import os; print(os.getppid())'\n"
        f"from pathlib import Path; out = Path({str(tmp_path / 'out')!r})\n"
        "print(end='', flush=True)\n"
        "assert ForkServer.current.fork('builtins:exec', [inner], out=out).wait(20) == 0\n"
        "with ForkServer([]) as own:\n"
        "    check = 'import sys; assert \"fractions\" in sys.modules'\n"
        "    assert own.fork('builtins:exec', [check]).wait(20) == 0\n"
    )
    assert server.fork("builtins:exec", [code], out=tmp_path / "out").wait(LIMIT_S) == 0
    first, second = (tmp_path / "out").read_text().split()
    assert first == second


def test_a_forked_process_finalizes_what_it_has_made_itself(server: ForkServer, tmp_path: Path) -> None:
    """And leaves to its server what that has made."""
    out = tmp_path / "out"
    keep = "import sys, weakref; sys.{0} = type('A', (), {{}})(); weakref.finalize(sys.{0}, print, '{0}')\n"
    code = (
        f"{keep.format('outer')}from pathlib import Path; from rlcore_machine import ForkServer\n"
        f"with ForkServer([]) as own:\n    inner = own.fork('builtins:exec', [{keep.format('inner')!r}], "
        f"out=Path({str(out)!r}))\n    assert inner.wait(20) == 0\n"
    )
    assert server.fork("builtins:exec", [code], out=out).wait(LIMIT_S) == 0
    assert out.read_text() == "inner\nouter\n"


def test_the_end_of_the_server_ends_what_is_tied_to_it() -> None:
    server = ForkServer([])
    tied, loose = server.fork("time:sleep", [100]), server.fork("time:sleep", [100], tied=False)
    processes = [psutil.Process(one.pid) for one in (tied, loose)]
    server.close()
    assert tied.wait(LIMIT_S) == -signal.SIGKILL
    psutil.wait_procs(processes[:1], timeout=LIMIT_S)
    assert [one.is_running() for one in processes] == [False, True]
    processes[1].kill()
    assert server.fork("time:sleep", [100]).wait(LIMIT_S) == -signal.SIGKILL, "there is nobody to fork it"


def test_nothing_outlives_an_owner_that_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    forked = psutil.Process(int(owner.stdout.readline()))
    processes = [one.pid for one in (forked, *forked.parents()[:1])]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: gone(*processes))
