"""All benchmarks, one after the other: what `make bench` runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from common import BENCHMARKS, say

NAMES = (
    "startup",
    "rollout",
    "driver",
    "publication",
    "trainer_step",
    "blocks",
    "layout_bytes",
    "asynchrony",
    "kills",
    "vs_trl",
    "curves",
)
"""In the order of `make bench`. `learning.py` and `chains.py` take hours, and make their tables in pieces."""


def main() -> int:
    """Each in a process of its own; the exit code is 1 where one failed. Unknown options go to each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="which ones")
    args, passed = options.parse_known_args()
    failed = run(args.only, passed)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def run(names: Sequence[str], passed: list[str]) -> list[str]:
    """Run these benchmarks; the names of those that failed."""
    failed = []
    for number, name in enumerate(names, 1):
        say(f"=== {name} ({number}/{len(names)})")
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, str(BENCHMARKS / f"{name}.py"), *passed])
        say(f"=== {name}: {time.perf_counter() - begin:.0f} s, exit code {done.returncode}")
        if done.returncode:
            failed.append(name)
    return failed


if __name__ == "__main__":
    sys.exit(main())
