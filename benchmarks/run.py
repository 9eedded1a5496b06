"""All benchmarks, one after the other: what `make bench` runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from common import BENCHMARKS, say

ORDER = (
    "startup",
    "demo",
    "rollout",
    "driver",
    "publication",
    "sessions",
    "attack",
    "trainer_step",
    "profile_step",
    "hook_calls",
    "memory",
    "head_memory",
    "convert_memory",
    "asynchrony",
    "chaos",
    "kills",
    "vs_trl",
    "curves",
)


def main() -> int:
    """Each in a process of its own; the exit code is 1 where one failed. Unknown options go to each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="+", choices=ORDER, default=list(ORDER), help="which ones")
    args, passed = options.parse_known_args()
    failed = []
    for number, name in enumerate(args.only, 1):
        say(f"=== {name} ({number}/{len(args.only)})")
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, str(BENCHMARKS / f"{name}.py"), *passed])
        say(f"=== {name}: {time.perf_counter() - begin:.0f} s, exit code {done.returncode}")
        if done.returncode:
            failed.append(name)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
