"""Whether Ray works on this machine, for `rlcore doctor`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from rlcore import Diagnosis

LIMIT_S = 90.0
START = """
import sys, ray
own = {"num_cpus": 1, "include_dashboard": False} if sys.argv[1] == "local" else {}
ray.init(address=sys.argv[1], configure_logging=False, log_to_driver=False, **own)
print(ray.__version__)
ray.shutdown()
"""
"""In a process of its own, since Ray may hang."""


def diagnoses(address: str | None) -> Iterator[Diagnosis]:
    """Whether a Ray of the run's own starts, or the one at `address` answers."""
    remedy = "Runs of one machine work with `--cluster processes`; the last line of Ray says why it failed."
    command = [sys.executable, "-c", START, address or "local"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Diagnosis(what="start", found=f"takes more than {LIMIT_S:g} s", remedy=remedy)
        return
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"]
        yield Diagnosis(what="start", found=f"fails: {lines[-1].strip()[:200]}", remedy=remedy)
        return
    yield Diagnosis(what="start", found=f"works with Ray {done.stdout.split()[-1]}")
