"""All benchmarks, one after the other: what `make bench` runs. At the end: tables older than their code."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from common import BENCHMARKS, RESULTS, say

CORE = "core/src/rlcore"
LOCAL, MEGATRON = "plugins/engines/local/src", "plugins/trainers/megatron/src"
SESSION, TOOLS = "plugins/generators/session/src", "plugins/generators/tools/src"
SAMPLING = "plugins/producers/sampling/src"
ALL = (CORE, LOCAL, MEGATRON, SAMPLING, "plugins/algorithms")

MEASURED = {
    "startup": (
        f"{CORE}/compose",
        f"{CORE}/config",
        f"{CORE}/plugins",
        f"{CORE}/runtime",
        "cli/src",
        "machine/src",
    ),
    "demo": ALL,
    "rollout": (f"{CORE}/rollout", f"{CORE}/engines", LOCAL),
    "driver": (f"{CORE}/rollout", f"{CORE}/engines", "plugins/generators/single_turn/src"),
    "rollout_workers": (f"{CORE}/rollout", f"{CORE}/runtime", TOOLS),
    "publication": (f"{CORE}/engines", f"{CORE}/runtime", LOCAL, MEGATRON),
    "sessions": (SESSION, f"{CORE}/engines"),
    "attack": (SESSION,),
    "trainer_step": (MEGATRON, f"{CORE}/learning"),
    "profile_step": (MEGATRON, f"{CORE}/learning"),
    "hook_calls": (f"{CORE}/runtime", f"{CORE}/tracking", "plugins/trackers/jsonl/src"),
    "memory": (f"{CORE}/api", MEGATRON),
    "head_memory": (MEGATRON,),
    "sleep": (MEGATRON, "plugins/commands/plan/src"),
    "layout_bytes": (MEGATRON, "plugins/commands/plan/src"),
    "convert_memory": (MEGATRON,),
    "asynchrony": (SAMPLING, f"{CORE}/rollout", f"{CORE}/runtime", LOCAL),
    "chaos": (SAMPLING, f"{CORE}/rollout", TOOLS),
    "kills": (f"{CORE}/runtime", f"{CORE}/engines", f"{CORE}/checkpoint"),
    "vs_trl": ALL,
    "curves": ALL,
}
"""Benchmark → the code that it measures, in the order of `make bench`."""

HOURS = {"learning": ALL, "chains": ALL}
"""They take hours, so `make bench` leaves them out: `learning.py` and `chains.py` make them in pieces."""


def main() -> int:
    """Each in a process of its own; the exit code is 1 where one failed. Unknown options go to each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="+", choices=MEASURED, default=list(MEASURED), help="which ones")
    options.add_argument("--stale", action="store_true", help="run nothing; say which tables are old")
    args, passed = options.parse_known_args()
    failed = [] if args.stale else run(args.only, passed)
    for line in stale():
        print(line)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def run(names: list[str], passed: list[str]) -> list[str]:
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


def stale() -> list[str]:
    """A line for each table whose code has changed since it was measured, with the number of commits."""
    lines = []
    for name, paths in (MEASURED | HOURS).items():
        result = RESULTS / f"{name}.json"
        if not result.is_file():
            lines.append(f"{name}: no result is stored")
            continue
        measured = _git("log", "-1", "--format=%H", "--", str(result))
        commits = int(_git("rev-list", "--count", f"{measured}..HEAD", "--", *paths)) if measured else 0
        if commits:
            date = json.loads(result.read_text())["date"]
            lines.append(f"{name}: of {date}, {commits} commits older than {', '.join(paths)}")
    return lines


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=BENCHMARKS.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
