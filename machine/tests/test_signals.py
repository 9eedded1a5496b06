"""Signals that come while a run ends."""

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys, time
from rlcore_machine import signals
signals.END_LIMIT_S = float(sys.argv[1])
try:
    with signals.signals_raise():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("the last line", flush=True)
"""


def ended(limit_s: float) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(limit_s)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_the_first_counts_and_a_late_one_ends_what_does_not_end() -> None:
    assert ended(60) == (0, "the last line\n")
    assert ended(0) == (128 + signal.SIGINT, "")


HELD_UP = """
import asyncio, os, signal, threading, time
from rlcore_machine import signals
signals.HELD_UP_S = 0.2
number = signal.Signals(int(__import__("sys").argv[1]))

async def plugin():
    time.sleep(60)

async def main():
    with signals.StopSignals():
        for after in (0.3, 0.4, 0.9):
            threading.Timer(after, os.kill, (os.getpid(), number)).start()
        task = asyncio.create_task(plugin())
        try:
            await task
        finally:
            print("tidied up", time.monotonic() - begin > 0.8, flush=True)

begin = time.monotonic()
try:
    asyncio.run(main())
except (KeyboardInterrupt, signals.Terminated) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")]
)
def test_a_second_one_ends_code_that_holds_up_the_event_loop(number: signal.Signals, name: str) -> None:
    """One that comes at once, as from an impatient finger, does nothing."""
    done = subprocess.run(
        [sys.executable, "-c", HELD_UP, str(int(number))], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, f"tidied up True\n{name}\n"), done.stderr
