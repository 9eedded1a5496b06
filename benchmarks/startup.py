"""How long a user waits: for help texts, for a refusal, and for the first training step."""

from __future__ import annotations

import resource
import statistics
import sys

from common import (
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
EMPTY, IMPORTS = "python -c pass", "python -c 'import torch, transformers, ray'"
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    EMPTY: ([sys.executable, "-c", "pass"], None),
    "rlcore --help": ([str(RLCORE), "--help"], 10),
    "rlcore plugins": ([str(RLCORE), "plugins"], 10),
    "rlcore train --help": ([*TRAIN, "--help"], 20),
    "rlcore train … --dry-run": ([*TRAIN, "--dry-run"], 20),
    "rlcore train … --lr high (refused)": ([*TRAIN, "--lr", "high"], 20),
    IMPORTS: ([sys.executable, "-c", "import torch, transformers, ray"], None),
}
"""Command → its arguments, and the most times an empty interpreter that it may take."""
FIRST_STEP = 3.1
"""The most times the imports of torch, transformers and Ray that the first step may take."""


def main() -> None:
    """Median seconds of each command, next to those of an empty interpreter and of the bare imports."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20, help="runs of each short command")
    options.add_argument("--runs", type=int, default=3, help="runs to the first training step")
    args = options.parse_args()
    facts = machine(args.threads)
    runs_of: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(args.repeats):
        for name, (arguments, _) in COMMANDS.items():
            runs_of[name].append(_seconds(arguments))
        say(f"short commands: round {number + 1}/{args.repeats}")
    wall, cpu = ({name: _median(each, place) for name, each in runs_of.items()} for place in (0, 1))
    rows = [
        _row(name, wall[name], "CPU of an empty interpreter", cpu[name] / cpu[EMPTY], limit)
        for name, (_, limit) in COMMANDS.items()
    ]
    first: dict[str, list[CommandRun]] = {"ray": [], "processes": []}
    times: dict[str, list[float]] = {cluster: [] for cluster in first}
    for _ in range(args.runs):
        for cluster, runs in first.items():
            imports = _seconds(COMMANDS[IMPORTS][0])[0]  # just before, so that load lengthens both
            runs.append(_first_step(args, "--cluster", cluster))
            times[cluster].append(runs[-1].first_step_s / imports)
    for cluster, runs in first.items():
        name = f"rlcore train … --cluster {cluster}, to the end of step 1"
        taken = statistics.median(run.first_step_s for run in runs)
        rows.append(_row(name, taken, "the imports", statistics.median(times[cluster]), FIRST_STEP))
    typical = sorted(first["ray"], key=lambda run: run.first_step_s)[len(first["ray"]) // 2]
    text = f"{table(rows)}\n\nThe way to the first step:\n\n{table(_phases(typical))}"
    publish("startup", facts, {"rows": rows, "phases": dict(typical.phases)}, text, dry=args.dry)


def _seconds(arguments: list[str]) -> tuple[float, float]:
    """Seconds of the clock and of the CPU, which other programs of the machine change less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = timed(lambda: command(arguments, fails="high" in arguments))[1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _median(runs: list[tuple[float, float]], place: int) -> float:
    return statistics.median(run[place] for run in runs)


def _row(name: str, seconds: float, of: str, times: float, limit: float | None) -> Row:
    return {
        "command": f"`{name}`",
        "seconds": seconds,
        "times": f"{times:.1f} × {of}",
        "target": "" if limit is None else f"≤ {limit:g}",
        "met": "" if limit is None else verdict(times <= limit),
    }


def _first_step(args: object, *flags: str) -> CommandRun:
    chosen = ("--algo", "grpo", "--model", "qwen3", "--steps", "1")
    run = train(vars(args)["work"] / "startup", *chosen, *flags)
    say(f"first step after {run.first_step_s:.1f} s")
    return run


def _phases(run: CommandRun) -> list[Row]:
    phases = {name: at for name, at in run.phases.items() if "checkpoint" not in name}
    *before, last = phases
    names, begins = [*before, f"{last}, evaluation, step 1"], [*phases.values(), run.first_step_s]
    # The clock of the phases starts with the display, after the command's own imports.
    return [
        {"phase": name, "from, s": begins[index], "seconds": begins[index + 1] - begins[index]}
        for index, name in enumerate(names)
    ]


if __name__ == "__main__":
    main()
