"""What only a GPU can show, in pieces: each a process of its own, with a time limit and a result file.

python scripts/gpu_proof.py [PIECE …]     all pieces by default; docs/gpu_proof.md

A piece with a result is skipped. On a machine without a GPU each runs its CPU part, scaled down. One without
its package, TRL or SGLang, is skipped and does not count as passed. The exit code is 1 where a piece failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_pieces import PIECES, NotHereError

SECONDS = 480
TAIL = 4000
PACKAGES = ("rlcore", "torch", "transformers", "megatron-core", "ray", "trl", "sglang")


def main() -> int:
    """See the top."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("pieces", nargs="*", metavar="PIECE", help="which ones, by name")
    options.add_argument("--list", action="store_true", help="name the pieces and end")
    options.add_argument("--again", action="store_true", help="run what has a result too")
    options.add_argument("--out", type=Path, default=Path("build/gpu-proof"), help="folder of the results")
    options.add_argument("--seconds", type=float, default=SECONDS, help="limit of a piece")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if unknown := [name for name in args.pieces if name not in PIECES]:
        options.error(f"there is no piece {unknown[0]!r}: choose from {', '.join(PIECES)}.")
    if args.list:
        for name, piece in PIECES.items():
            print(f"{name:20}{(piece.__doc__ or '').splitlines()[0]}")
        return 0
    names = args.pieces or list(PIECES)
    folder = args.out.resolve()
    if args.child:
        run_here(names[0], folder)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    results = [result_of(name, folder, args.seconds, again=args.again) for name in names]
    text = summary(results)
    (folder / "summary.md").write_text(text)
    print(text, end="")
    return int(any(result["status"] == "failed" for result in results))


def result_of(name: str, folder: Path, seconds: float, *, again: bool) -> dict[str, Any]:
    """The result of an earlier run, or of one now, which gets `seconds`."""
    file = folder / f"{name}.json"
    if file.exists() and not again:
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept
    file.unlink(missing_ok=True)
    print(f"{name} …", file=sys.stderr, flush=True)
    begin, log = time.monotonic(), folder / f"{name}.log"
    code = run_apart([sys.executable, __file__, "--child", "--out", str(folder), name], log, seconds)
    took = round(time.monotonic() - begin, 1)
    if file.exists():
        result = json.loads(file.read_text())
    else:
        why = f"no end after {seconds:g} s" if code is None else f"exit code {code}"
        tail = log.read_text(errors="replace")[-TAIL:]
        result = {"piece": name, "status": "failed", "why": why, "log": tail, "machine": machine()}
    write(file, {**result, "seconds": took})
    return {**result, "seconds": took}


def run_apart(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """The exit code of `command` in a session of its own; None: stopped at the limit, with its children."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End what a piece started, engines included, even if it forgot them itself."""
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_here(name: str, folder: Path) -> None:
    """One piece in this process; its result goes into its file, a failure into the log."""
    work = folder / f"{name}.work"
    work.mkdir(exist_ok=True)
    found: dict[str, Any]
    try:
        found = {"status": "passed", "figures": PIECES[name](work)}
    except NotHereError as error:
        found = {"status": "skipped", "why": str(error)}
    write(folder / f"{name}.json", {"piece": name, **found, "machine": machine()})


def machine() -> dict[str, Any]:
    """The card and the versions."""
    import torch

    on_gpu = torch.cuda.is_available()
    facts: dict[str, Any] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    facts["card"] = torch.cuda.get_device_name() if on_gpu else "CPU"
    facts["cards"] = torch.cuda.device_count()
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts


def write(file: Path, result: dict[str, Any]) -> None:
    """Whole or not at all: a piece that is killed here has no result."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    part.replace(file)


def summary(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table, a row a piece."""
    lines = ["| piece | result | on | s | figures |", "| --- | --- | --- | --- | --- |"]
    for one in results:
        figures = one.get("figures") or {"": one.get("why", "")}
        told = ", ".join(f"{key} {short(value)}".strip() for key, value in figures.items())
        card = one["machine"]["card"]
        lines.append(f"| {one['piece']} | {one['status']} | {card} | {one['seconds']:g} | {told} |")
    return "\n".join(lines) + "\n"


def short(value: Any) -> str:
    """For a cell."""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")[:200]


if __name__ == "__main__":
    sys.exit(main())
