"""How long a user waits: for help texts, for a refusal, and for the first training step."""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil
from common import (
    IMAGES,
    POLL_S,
    RLCORE,
    CommandRun,
    Row,
    command,
    machine,
    parser,
    publish,
    say,
    table,
    timed,
    train,
    verdict,
)

TRAIN = [str(RLCORE), "train", "--algo", "grpo", "--model", "qwen3"]
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "rlcore --help": ([str(RLCORE), "--help"], 0.5),
    "rlcore plugins": ([str(RLCORE), "plugins"], 0.5),
    "rlcore train --help": ([*TRAIN, "--help"], None),
    "rlcore train … --dry-run": ([*TRAIN, "--dry-run"], 1.0),
    "rlcore train … --lr high (refused)": ([*TRAIN, "--lr", "high"], 1.0),
    "python -c 'import torch, transformers, ray'": (
        [sys.executable, "-c", "import torch, transformers, ray"],
        None,
    ),
}
FIRST_STEP_S = 10.0
BUSY = 0.2
"""The share of a core above which a process counts as running."""


def main() -> None:
    """Median seconds of each command, next to those of an empty interpreter and of the bare imports."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=7, help="runs of each short command")
    options.add_argument("--runs", type=int, default=3, help="runs to the first training step")
    args = options.parse_args()
    facts = machine(args.threads)
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(args.repeats):
        for name, (arguments, _) in COMMANDS.items():
            seconds[name].append(_seconds(arguments))
        say(f"short commands: round {number + 1}/{args.repeats}")
    empty = statistics.median(seconds["python -c pass"])
    rows = [
        _row(name, statistics.median(seconds[name]), empty, limit) for name, (_, limit) in COMMANDS.items()
    ]
    runs, others = [], []
    for _ in range(args.runs):
        runs.append(_first_step(args))
        others.append(_first_step(args, "--cluster", "processes"))
    first = statistics.median(run.first_step_s for run in runs)
    rows.append(_row("rlcore train … to the end of step 1", first, empty, FIRST_STEP_S))
    without = statistics.median(run.first_step_s for run in others)
    rows.append(_row("the same with --cluster processes", without, empty, FIRST_STEP_S))
    typical = min(runs, key=lambda run: abs(run.first_step_s - first))
    lanes = Lanes()
    watched = _first_step(args, lanes=lanes)
    if not args.dry:
        lanes.draw(watched.first_step_s)
    text = f"{table(rows)}\n\nThe way to the first step:\n\n{table(_phases(typical))}"
    publish("startup", facts, {"rows": rows, "phases": dict(typical.phases)}, text, dry=args.dry)


def _seconds(arguments: list[str]) -> float:
    return timed(lambda: command(arguments, fails="high" in arguments))[1]


def _row(name: str, seconds: float, empty: float, limit: float | None) -> Row:
    return {
        "command": f"`{name}`",
        "seconds": seconds,
        "times an empty interpreter": seconds / empty,
        "target, s": "" if limit is None else f"≤ {limit:g}",
        "met": "" if limit is None else verdict(seconds <= limit),
    }


def _first_step(args: object, *flags: str, lanes: Lanes | None = None) -> CommandRun:
    chosen = ("--algo", "grpo", "--model", "qwen3", "--steps", "1")
    watch = lanes.look if lanes else None
    run = train(vars(args)["work"] / "startup", *chosen, *flags, watch=watch)
    say(f"first step after {run.first_step_s:.1f} s")
    return run


def _phases(run: CommandRun) -> list[Row]:
    *before, last = run.phases
    names, begins = [*before, f"{last}, evaluation, step 1"], [*run.phases.values(), run.first_step_s]
    # The clock of the phases starts with the display, after the command's own imports.
    return [
        {"phase": name, "from, s": begins[index], "seconds": begins[index + 1] - begins[index]}
        for index, name in enumerate(names)
    ]


def _name(process: psutil.Process) -> str:
    """Ray's processes name themselves; of a Python, its script or module."""
    first, *others = process.cmdline() or [process.name()]
    if "python" not in first:
        return Path(first.split()[0]).name
    script = next((argument for argument in others if argument.endswith(".py") or "rlcore" in argument), "")
    found = re.search(r"rlcore\w*", script)
    return found[0] if found else Path(script or first).name


class Lanes:
    """Which processes of a command compute, and on which core: a look every `POLL_S`."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._processes: dict[int, psutil.Process] = {}
        self._cpu: dict[int, float] = defaultdict(float)
        self._names: dict[int, str] = {}
        self._bars: dict[int, list[tuple[float, int]]] = defaultdict(list)

    def look(self, pid: int) -> None:
        """One look at the processes that `pid` has started, and at itself."""
        at = time.perf_counter() - self._begin
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                spent = sum(process.cpu_times()[:2])
                if spent - self._cpu[process.pid] > BUSY * POLL_S:
                    self._bars[process.pid].append((at, process.cpu_num()))
                self._cpu[process.pid] = spent
                self._names[process.pid] = _name(process)

    def draw(self, until: float) -> None:
        """docs/images/startup.svg: a lane for each process that computed for 0.1 s, a color for each core."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.patches import Patch

        lanes = [pid for pid, bars in self._bars.items() if len(bars) * POLL_S > 0.1]
        figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(lanes) + 1.2), layout="constrained")
        for lane, pid in enumerate(lanes):
            for at, core in self._bars[pid]:
                axes.broken_barh([(at - POLL_S, POLL_S)], (lane - 0.35, 0.7), color=f"C{core}")
        axes.axvline(until, color="black", linewidth=1)
        axes.annotate(
            "step 1 is done",
            (until, -0.7),
            ha="right",
            va="bottom",
            xytext=(-4, 0),
            textcoords="offset points",
        )
        axes.set_yticks(range(len(lanes)), [self._names[pid] for pid in lanes])
        axes.set_ylim(len(lanes) - 0.4, -1.2)
        axes.set_xlabel("seconds since the command began")
        cores = sorted({core for pid in lanes for _, core in self._bars[pid]})
        handles = [Patch(color=f"C{core}", label=f"core {core}") for core in cores]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        figure.savefig(IMAGES / "startup.svg", metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
