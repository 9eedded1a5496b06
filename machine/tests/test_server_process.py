"""A server process: ready, dead at once, hung, stubborn, and never an orphan."""

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waits import eventually, gone

from rlcore_machine.network import HeldPort, free_port
from rlcore_machine.server_process import ServerProcess

LIMIT_S = 60.0

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args):
        pass
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# A server that ignores SIGTERM, with a child that left its session and a grandchild whose parent has ended.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
sleep = [sys.executable, "-c", deaf]
child = subprocess.Popen(sleep, start_new_session=True)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(subprocess.Popen(sleep, start_new_session=True).pid).encode())
    os._exit(0)
os.wait()
print("pids", os.getpid(), child.pid, os.read(reader, 64).decode(), flush=True)
time.sleep(600)
"""


def test_a_held_port_is_for_one_server_after_the_other(tmp_path: Path) -> None:
    with HeldPort() as held:
        for number in range(2):
            argv = [sys.executable, "-c", SERVER, str(held.number)]
            with ServerProcess(argv, name="demo", log_path=tmp_path / f"{number}.log") as server:
                server.wait_ready(f"http://127.0.0.1:{held.number}", limit_s=LIMIT_S)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", held.number))


def server(tmp_path: Path, code: str, *args: str, grace_s: float = 10.0) -> ServerProcess:
    argv = [sys.executable, "-c", code, *args]
    return ServerProcess(argv, name="test", log_path=tmp_path / "logs" / "server.log", grace_s=grace_s)


def pids_in(log: Path) -> list[int]:
    eventually(lambda: log.exists() and "pids" in log.read_text())
    return [int(pid) for pid in log.read_text().split()[1:]]


def test_a_server_becomes_ready_and_stops(tmp_path: Path) -> None:
    port = free_port()
    process = server(tmp_path, SERVER, str(port))
    with process:
        process.wait_ready(f"http://127.0.0.1:{port}/health", limit_s=LIMIT_S)
        assert process.exit_code() is None
        assert "serving" in process.tail()
        assert process.log_path.stat().st_mode & 0o077 == 0
    assert process.exit_code() is not None
    process.stop()


def test_a_server_that_dies_fails_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        server(tmp_path, "import sys; print('no such model'); sys.exit(3)") as process,
        pytest.raises(RuntimeError, match=r"(?s)exit code 3.*no such model"),
    ):
        process.wait_ready(f"http://127.0.0.1:{free_port()}/health", limit_s=LIMIT_S)


class Another(socketserver.BaseRequestHandler):
    """A program that took the port first, and speaks no HTTP/1."""

    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"\0\0\x12\x04\n")


def test_another_program_on_its_port_is_not_the_server(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Another) as another:
        threading.Thread(target=another.serve_forever, daemon=True).start()
        with (
            server(tmp_path, "import sys; sys.exit('address in use')") as process,
            pytest.raises(RuntimeError, match=r"(?s)exit code 1.*address in use"),
        ):
            process.wait_ready(f"http://127.0.0.1:{another.server_address[1]}/health", limit_s=LIMIT_S)
        another.shutdown()


def test_a_server_that_does_not_answer_in_time_fails(tmp_path: Path) -> None:
    with (
        server(tmp_path, "import time; time.sleep(600)") as process,
        pytest.raises(RuntimeError, match=r"not ready within 0\.5 s"),
    ):
        process.wait_ready(f"http://127.0.0.1:{free_port()}/health", limit_s=0.5)


@pytest.mark.parametrize("first", ["pass", "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))"])
def test_a_server_that_stops_while_it_starts_fails_within_its_limit(tmp_path: Path, first: str) -> None:
    port = free_port()
    code = f"import os, signal, socket, sys; {first}; os.kill(os.getpid(), signal.SIGSTOP)"
    with (
        server(tmp_path, code, str(port), grace_s=0.1) as process,
        pytest.raises(RuntimeError, match=r"has been stopped for 0\.5 s"),
    ):
        process.wait_ready(f"http://127.0.0.1:{port}/health", limit_s=LIMIT_S, stopped_s=0.5)


def test_a_command_that_does_not_exist_is_an_engine_error(tmp_path: Path) -> None:
    process = ServerProcess(["/no/such/python"], name="test", log_path=tmp_path / "server.log")
    with process, pytest.raises(RuntimeError, match=r"(?s)exit code.*/no/such/python"):
        process.wait_ready(f"http://127.0.0.1:{free_port()}/health", limit_s=LIMIT_S)


def test_stop_ends_descendants_that_ignore_sigterm_and_left_the_session(tmp_path: Path) -> None:
    process = server(tmp_path, STUBBORN, grace_s=0.5)
    with process:
        pids = pids_in(process.log_path)
        assert not gone(*pids)
    assert gone(*pids)


@pytest.mark.parametrize(("grace_s", "code"), [(0.0, None), (0.5, 128 + signal.SIGTERM)])
def test_a_server_without_grace_outlives_sigterm(tmp_path: Path, grace_s: float, code: int | None) -> None:
    """Its guard does in any case: it still ends what the server leaves."""
    text = "import os, time; print('pids', os.getpid(), flush=True); time.sleep(600)"
    with server(tmp_path, text, grace_s=grace_s) as process:
        pids = pids_in(process.log_path)
        for pid in (process.pid, *pids):
            os.kill(pid, signal.SIGTERM)
        if code is None:
            time.sleep(0.3)
            assert process.exit_code() is None
        else:
            eventually(lambda: process.exit_code() == code)
    assert gone(*pids)


def test_a_server_that_dies_leaves_no_descendants(tmp_path: Path) -> None:
    with server(tmp_path, STUBBORN, grace_s=0.5) as process:
        pids = pids_in(process.log_path)
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: gone(*pids))
        eventually(lambda: process.exit_code() == 128 + signal.SIGKILL)


def test_the_death_of_the_owner_ends_the_server(tmp_path: Path) -> None:
    owner = (
        "import sys, time; from rlcore_machine.server_process import ServerProcess\n"
        "command = [sys.executable, '-c', sys.argv[1]]\n"
        "ServerProcess(command, name='test', log_path=sys.argv[2], grace_s=0.5).start()\n"
        "time.sleep(600)"
    )
    log = tmp_path / "server.log"
    parent = subprocess.Popen([sys.executable, "-c", owner, STUBBORN, str(log)])
    pids = pids_in(log)
    parent.kill()
    parent.wait(LIMIT_S)
    eventually(lambda: gone(*pids))
