"""How long a user waits: for help texts, for a refusal, and for the first training step."""

from __future__ import annotations

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


def _first_step(args: object, *flags: str) -> CommandRun:
    chosen = ("--algo", "grpo", "--model", "qwen3", "--steps", "1")
    run = train(vars(args)["work"] / "startup", *chosen, *flags)
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


if __name__ == "__main__":
    main()
