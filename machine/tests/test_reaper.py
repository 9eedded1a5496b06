"""What a driver shares and starts does not outlive it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from waits import eventually

from rlcore_machine import reaper
from rlcore_machine.shared_memory import shared_dir

LIMIT_S = 60.0
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from rlcore_machine.reaper import Reaper
nap = [sys.executable, "-c", "import time; time.sleep(600)"]
before = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
of_it = int(before.stdout.readline())
reaper = Reaper()
reaper.start()
reaper.remove(Path(sys.argv[1]))
if sys.argv[2] == "alone":
    reaper._process.kill()
child = subprocess.Popen(nap, start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
if sys.argv[2] == "close":
    reaper.close()
    assert before.poll() is None, "it was there before"
    before.kill()
    os.kill(of_it, 9)  # it is there, too
else:
    time.sleep(600)
"""


def _driver(folder: Path, how: str) -> tuple["subprocess.Popen[str]", psutil.Process]:
    """It shares `folder` and has a child in a session of its own."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), how], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    return driver, psutil.Process(int(driver.stdout.readline()))


def test_a_killed_driver_leaves_no_shared_memory() -> None:
    """However early it is killed; that its processes end is a test of the command."""
    folder = shared_dir("test", 1)
    (folder / "weights").write_bytes(b"0" * 1000)
    driver, child = _driver(folder, "wait")
    earlier = [one for one in psutil.Process(driver.pid).children(recursive=True) if "sleep" in one.cmdline()]
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=LIMIT_S)
    eventually(lambda: not folder.exists())
    for left in (child, *earlier):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


def test_the_next_driver_removes_what_nobody_owns() -> None:
    """Not what a living driver has, and not what a driver of another host may have."""
    folder, foreign = shared_dir("test", 1), shared_dir("test", 1)
    (foreign / reaper.OWNER).write_text("another boot\n")
    driver, child = _driver(folder, "alone")
    reaper.remove_ownerless(folder.parent)
    assert folder.exists()
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=LIMIT_S)
    reaper.remove_ownerless(folder.parent)
    assert not folder.exists()
    assert foreign.exists()
    shutil.rmtree(foreign)
    child.kill()


def test_an_orderly_end_leaves_nothing() -> None:
    folder = shared_dir("test", 1)
    driver, child = _driver(folder, "close")
    driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 0
    assert not folder.exists()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
