"""Does a small adapter learn as much? All weights and adapters of several ranks, on `copy` and on arithmetic.

Where there are several learning rates, the table and the picture show the best, by the mean of the
evaluations. A run is kept in a JSON file as soon as it ends, and not made again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from common import IMAGES, SMOLLM2, Row, command, machine, parser, publish, say, table, train
from learned import Kept, Learned, draw

COPY = ("--algo", "grpo", "--model", "qwen3", "--steps", "100", "--eval-every", "10")
RATES = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
TASKS: dict[str, tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]] = {
    "copy, megatron": (COPY, RATES, RATES),
    "copy, fsdp": ((*COPY, "--trainer", "fsdp"), RATES[2:4], RATES[2:4]),
    "arithmetic, megatron": (("--config", "examples/arithmetic/run.toml"), (1e-5, 2e-5), (2e-4,)),
}
"""Flags, and learning rates for all weights and for adapters."""
WEIGHTS: dict[str, tuple[str, ...]] = {
    "all": (),
    **{f"rank {rank}": ("--lora.rank", str(rank)) for rank in (1, 8, 32)},
}


def main() -> None:
    """Make what is missing, then show all that was asked for."""
    options = parser(__doc__)
    options.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="which ones")
    options.add_argument("--runs", type=Path, default=None, help="the finished runs (default: in --work)")
    args = options.parse_args()
    if not (SMOLLM2 / "model").exists():
        command([sys.executable, str(SMOLLM2 / "make_model.py")])
    facts = machine(args.threads)
    kept = Kept(args.runs or args.work / "ranks_runs.json")
    best = [
        max(_rates(kept, args.work, task, weights), key=lambda run: fmean(score for _, score in run.points))
        for task in args.tasks
        for weights in WEIGHTS
    ]
    picture = draw(best, (args.work if args.dry else IMAGES) / "ranks.png")
    rows = [_row([run for run in best if run.recipe == name]) for name in WEIGHTS]
    text = f"{table(rows)}\n\n![Held-out accuracy by rank](images/{picture.name})"
    publish("ranks", facts, {"runs": [asdict(run) for run in best]}, text, dry=args.dry)


def _rates(kept: Kept, work: Path, task: str, weights: str) -> Sequence[Learned]:
    """A run with each learning rate."""
    flags, whole, adapters = TASKS[task]
    return [
        _run(kept, work, task, weights, (*flags, *WEIGHTS[weights], "--lr", f"{rate:g}"))
        for rate in (adapters if WEIGHTS[weights] else whole)
    ]


def _run(kept: Kept, work: Path, task: str, weights: str, flags: tuple[str, ...]) -> Learned:
    """The kept run, or a new one."""
    if (known := kept.find(weights, task, 0, flags)) is not None:
        return known
    made = train(work / "ranks", *flags)
    scores = next(name for name in made.rows[0] if name.startswith("eval/") and name.endswith("/score"))
    points = [(row["step"], row[scores]) for row in made.rows if scores in row]
    run = Learned(recipe=weights, task=task, seed=0, flags=flags, seconds=made.seconds, points=points)
    kept.add(run)
    say(f"{task}, {weights}, --lr {flags[-1]}: {run.before:.3f} to {run.after:.3f} in {run.seconds:.0f} s")
    return run


def _row(best: Sequence[Learned]) -> Row:
    """What one choice of weights came to in each task: at the end, at most, and the learning rate."""
    cells = {
        run.task: f"{run.after:.2f}, most {max(score for _, score in run.points):.2f} (lr {run.flags[-1]})"
        for run in best
    }
    return {"weights": best[0].recipe, **cells}


if __name__ == "__main__":
    main()
