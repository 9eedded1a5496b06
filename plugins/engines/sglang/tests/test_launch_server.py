"""How the processes of a CPU server are started; that they then serve is tested with SGLang."""

import subprocess
import sys

FORKED = """
import multiprocessing, os, threading
from rlcore_sglang.launch_server import fork_where_it_can

def tell(line):
    line.send((os.getpid(), multiprocessing.get_start_method()))

fork_where_it_can()
multiprocessing.set_start_method("spawn", force=True)  # as SGLang does
assert multiprocessing.get_start_method() == "fork"
mine, its = multiprocessing.Pipe()
child = multiprocessing.Process(target=tell, args=(its,))
child.start()
assert mine.poll(30)
assert mine.recv() == (child.pid, "spawn")
child.join(30)
assert child.exitcode == 0
done = threading.Event()
threading.Thread(target=done.wait).start()
multiprocessing.set_start_method("spawn", force=True)
assert multiprocessing.get_start_method() == "spawn", "a lock of the other thread may be held"
done.set()
"""


def test_processes_are_forked_where_there_is_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
