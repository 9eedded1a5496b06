"""What a program in the sandbox tries, and what becomes of it. Each attempt must fail, and hurt nobody."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waits import eventually

from rlcore_sandbox import ProgramEnd, Sandbox, SandboxLimits

SECRET = "RLCORE_TEST_SECRET"
LIMIT_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    """Something in this process's environment that no program may see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, "hunter2")
        yield


@pytest.fixture(scope="module")
def sandbox(secret: None) -> Iterator[Sandbox]:
    with Sandbox(SandboxLimits(seconds=LIMIT_S, memory_mib=256, processes=4, files_mib=4)) as made:
        yield made


def run(sandbox: Sandbox, source: str) -> ProgramEnd:
    return sandbox.run(textwrap.dedent(source))


def refused(done: ProgramEnd, *errors: str) -> bool:
    return done.code != 0 and any(error in done.stderr for error in errors)


def test_the_sandbox_works(sandbox: Sandbox) -> None:
    done = sandbox.run("import math, json, threading\nprint(input(), math.pi > 3)", "hello")
    assert done == ProgramEnd(how="ended", code=0, stdout="hello True\n", stderr="")


def test_no_network(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run(sandbox, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        assert refused(done, "PermissionError", "Network is unreachable")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_no_local_socket_of_the_machine(sandbox: Sandbox) -> None:
    done = run(sandbox, "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0rlcore')")
    assert refused(done, "PermissionError", "ConnectionRefused")


def test_a_fork_bomb_stops_at_the_limit(sandbox: Sandbox) -> None:
    done = run(
        sandbox,
        """
        import os, time
        made = 0
        try:
            while made < 1000:
                if not os.fork():
                    time.sleep(60)
                    os._exit(0)
                made += 1
        except BlockingIOError:
            pass
        print(made)
        """,
    )
    assert (done.how, done.stdout) == ("ended", "3\n")


def test_a_fork_bomb_in_each_child_ends_with_the_program(sandbox: Sandbox) -> None:
    started = time.monotonic()
    with Sandbox(SandboxLimits(seconds=2, processes=8)) as short:
        done = run(short, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert done.how == "timeout"
    assert time.monotonic() - started < 60
    assert sandbox.run("print(1)").stdout == "1\n"


def test_a_memory_bomb_gets_no_memory(sandbox: Sandbox) -> None:
    assert refused(run(sandbox, "x = bytearray(1 << 30)"), "MemoryError")
    assert refused(run(sandbox, "x = []\nwhile True: x.append(bytearray(1 << 20))"), "MemoryError")


def test_no_memory_beside_the_limit(sandbox: Sandbox) -> None:
    assert refused(run(sandbox, "import os\nos.memfd_create('x')"), "PermissionError")
    shared = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.shmget(0, 1 << 30, 0o1666))"
    assert run(sandbox, shared).stdout == "-1\n"


@pytest.mark.parametrize("path", ["/usr/x", "/x", "/dev/x", sys.base_prefix + "/x"])
def test_nothing_outside_can_be_written(sandbox: Sandbox, path: str) -> None:
    assert refused(run(sandbox, f"open({path!r}, 'w')"), "OSError", "FileNotFoundError", "PermissionError")
    assert not Path(path).exists()


def test_the_disk_of_its_own_is_small_and_empty_again_for_the_next(sandbox: Sandbox) -> None:
    done = run(sandbox, "open('/tmp/a', 'w').write('left')\nopen('/tmp/b', 'wb').write(b'x' * (1 << 24))")
    assert refused(done, "OSError")
    assert run(sandbox, "import os\nprint(os.listdir('/tmp'))").stdout == "['main.py']\n"


def test_the_environment_holds_nothing_of_rlcore(sandbox: Sandbox) -> None:
    done = run(sandbox, "import os\nprint(sorted(os.environ))")
    assert done.stdout == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED']\n"
    everything = """
        import os
        for pid in [os.getppid(), 1, *range(2, 40), 'self']:
            for name in ('environ', 'cmdline', 'mem', 'root', 'maps'):
                try: print(open(f'/proc/{pid}/{name}', 'rb').read())
                except OSError: pass
    """
    assert run(sandbox, everything).stdout == ""


def test_no_file_of_the_machine_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    (tmp_path / "token").chmod(0o644)
    for path in (tmp_path / "token", Path(__file__), Path("/etc/passwd"), Path("/proc/self/environ")):
        assert refused(
            run(sandbox, f"print(open({str(path)!r}).read())"), "FileNotFoundError", "PermissionError"
        )
    found = run(sandbox, "import os\nprint(sorted(os.listdir('/')))").stdout
    assert not {"home", "work", "proc", "sys", "run", "var", "mnt", "opt"} & set(found.split("'"))


def test_no_descriptor_is_inherited(sandbox: Sandbox) -> None:
    done = run(
        sandbox,
        """
        import os
        for number in range(64):
            try: os.fstat(number); print(number, end=' ')
            except OSError: pass
        """,
    )
    assert done.stdout.split() == ["0", "1", "2"]


@pytest.mark.parametrize("target", ["os.getppid()", "1", "-1"])
def test_the_parent_cannot_be_killed(sandbox: Sandbox, target: str) -> None:
    run(sandbox, f"import os, signal\nos.kill({target}, signal.SIGKILL)")
    assert psutil.pid_exists(os.getpid())
    assert sandbox.run("print(1)").stdout == "1\n"


def test_nothing_can_be_traced_or_made_a_namespace(sandbox: Sandbox) -> None:
    calls = {
        "ptrace": "libc.ptrace(16, 1, 0, 0)",
        "unshare": "libc.unshare(0x10000000)",
        "mount": "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)",
        "setuid": "libc.setuid(0)",
        "clone": "libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)",
    }
    source = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    source += "\n".join(f"print({name!r}, {call})" for name, call in calls.items())
    assert run(sandbox, source).stdout == "".join(f"{name} -1\n" for name in calls)


def test_endless_output_is_cut_off() -> None:
    with Sandbox(SandboxLimits(seconds=LIMIT_S, output_kib=64)) as short:
        for stream in ("stdout", "stderr"):
            done = run(short, f"import sys\nwhile True: sys.{stream}.write('x' * 1000)")
            assert done.how == "output"
            assert len(done.stdout) + len(done.stderr) < 200_000


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        "import signal\nfor n in (1, 2, 3, 6, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "import os, time; os.close(1); os.close(2)\ntime.sleep(600)",
    ],
)
def test_what_never_ends_is_ended(source: str) -> None:
    with Sandbox(SandboxLimits(seconds=1)) as short:
        done = short.run(source)
    assert done.how == "timeout"


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


DAEMON = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        for stream in range(3): os.close(stream)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])
    os._exit(0)
time.sleep(0.3)
print('left')
"""


def test_a_daemon_dies_with_its_program(sandbox: Sandbox) -> None:
    mark = f"rlcore-daemon-{os.getpid()}"
    assert sandbox.run(DAEMON.format(mark=mark)).stdout == "left\n"
    assert not marked(mark)


def test_a_program_cannot_say_that_the_jail_failed(sandbox: Sandbox) -> None:
    done = run(
        sandbox, "import sys\nprint('{\"error\": \"x\"}')\nprint('error', file=sys.stderr)\nsys.exit(99)"
    )
    assert (done.how, done.code) == ("ended", 99)


def test_a_keeper_that_died_is_replaced(sandbox: Sandbox) -> None:
    for child in psutil.Process().children():
        if "jail.py" in " ".join(child.cmdline()):
            child.kill()
            child.wait(10)
    assert sandbox.run("print(1)").stdout == "1\n"


def test_the_jail_dies_with_the_process_that_asked_for_it() -> None:
    mark = f"rlcore-orphan-{os.getpid()}"
    again = f"[sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}]"
    program = f"import os, sys\nos.execv(sys.executable, {again})"
    run = f"Sandbox(SandboxLimits(seconds=600)).run({program!r})"
    owner = f"from rlcore_sandbox import Sandbox, SandboxLimits\n{run}"
    with subprocess.Popen([sys.executable, "-c", owner]) as process:
        eventually(lambda: any(found.pid != process.pid for found in marked(mark)))
        process.kill()
    eventually(lambda: not marked(mark))


AS_USER = """
from rlcore_sandbox import Sandbox, SandboxLimits
with Sandbox(SandboxLimits(seconds=20)) as sandbox:
    found = sandbox.run("import os; print(os.getuid(), os.getpid(), sorted(os.listdir('/tmp')))")
    killed = sandbox.run("import os; os.kill(1, 9); print('alive')")
    print(found.stdout.strip(), sandbox.run("open('/etc/x', 'w')").code, killed.stdout.strip())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandbox is what the other tests try")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare plays the ordinary user")
def test_an_ordinary_user_has_a_sandbox_too() -> None:
    """With a namespace of users, inside one in which this process has no rights."""
    argv = ["unshare", "--user", "--map-user=1000", "--map-group=1000", sys.executable, "-c", AS_USER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "65534 2 ['main.py'] 1 alive\n"


@pytest.mark.skipif(
    not Path("/usr/bin/python3").exists(), reason="needs an interpreter that all users can read"
)
def test_without_isolation_the_limits_and_the_filter_remain() -> None:
    limits = SandboxLimits(seconds=LIMIT_S, processes=4)
    with Sandbox(limits, python="/usr/bin/python3", isolated=False) as bare:
        assert refused(run(bare, "import socket\nsocket.socket()"), "PermissionError")
        assert refused(run(bare, "x = bytearray(1 << 33)"), "MemoryError")
        assert SECRET not in run(bare, "import os\nprint(os.environ)").stdout
        mark = f"rlcore-bare-{os.getpid()}"
        assert bare.run(DAEMON.format(mark=mark)).stdout == "left\n"
        assert not marked(mark)
