"""Signals that come while a run ends."""

from __future__ import annotations

import signal
import subprocess
import sys

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
