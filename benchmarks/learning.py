"""Does each recipe learn? Every RL recipe on the procedural tasks, from several seeds, and negative controls.

Each run is the real command. It is kept in a JSON file as soon as it ends, and not made again: the whole can
be made in pieces (`--recipes`, `--tasks`, `--seeds`), in any order. The table and the picture show what was
chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from common import BENCHMARKS, IMAGES, Row, machine, parser, publish, say, table, train, verdict
from learned import Kept, Learned, draw, grouped, outcome, picture_of

from rlcore.api.records import Kind
from rlcore.plugins.loader import load

LINEAR = ("--lr-schedule", "linear")
"""With several updates a batch, a constant rate makes some policies fall apart once they know it all."""
TASKS: dict[str, tuple[str, ...]] = {
    "copy": ("--steps", "80", *LINEAR),
    "sort": ("--steps", "120", *LINEAR),
}
"""What each task needs beyond the preset. `sort` is hard enough, in so few steps, that recipes differ."""

ROOT = BENCHMARKS.parent
"""Where runs are started: paths below it are kept as they are given."""
CONTROLS: dict[str, tuple[str, ...]] = {
    "shuffled advantages": ("--plugin", "tests/e2e/controls.py", "--advantage", "shuffled"),
    "random reward": ("--reward", "random"),
    "learning rate 0": ("--lr", "0"),
}
"""`grpo` without a signal, which must learn nothing."""

NOT_BY_REWARD = frozenset({"sft", "dpo", "opd"})
"""Recipes that learn from something else than a reward: `chains.py` has them."""

SEVERAL_UPDATES = ("--minibatches", "4")
LEARNT, NOTHING = 0.9, 0.1


def recipes() -> dict[str, tuple[str, ...]]:
    """The flags of each recipe that learns by a reward.

    Four updates a batch: with a single one every ratio is 1, and most losses are the same.
    """
    names = [name for name in load().registry.names(Kind.ALGORITHM) if name not in NOT_BY_REWARD]
    return {name: ("--algo", name, *SEVERAL_UPDATES) for name in names}


def main() -> None:
    """Make what is missing, then show all that was asked for."""
    chosen = recipes()
    options = parser(__doc__)
    options.add_argument(
        "--recipes", nargs="*", default=list(chosen), choices=list(chosen), help="which ones"
    )
    options.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="which ones")
    options.add_argument("--seeds", type=int, default=3, help="runs of each, with the seeds 0, 1, …")
    options.add_argument("--no-controls", action="store_true", help="leave the negative controls out")
    options.add_argument("--steps", type=int, help="fewer steps (for a trial)")
    options.add_argument("--runs", type=Path, default=None, help="the finished runs (default: in --work)")
    args = options.parse_args()
    facts = machine(args.threads)
    kept = Kept(args.runs or args.work / "learning_runs.json")
    found = [run_of(kept, args, *job) for job in jobs(chosen, args)]
    rows = [_row(group) for group in grouped(found) if group[0].recipe in chosen]
    controls = [_control(group) for group in grouped(found) if group[0].recipe in CONTROLS]
    images = args.work if args.dry else IMAGES
    text = "\n\n".join(table(part) for part in (rows, controls) if part)
    if rows:
        picture = draw([run for run in found if run.recipe in chosen], images / "learning.svg")
        text += f"\n\n![Held-out exact match of each recipe](images/{picture.name})"
    for name in args.recipes:  # one for the page of each algorithm
        draw([run for run in found if run.recipe == name], images / picture_of(name))
    publish("learning", facts, {"runs": [asdict(run) for run in found]}, text, dry=args.dry)


def jobs(
    chosen: dict[str, tuple[str, ...]], args: argparse.Namespace
) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """(recipe or control, task, seed, flags): seed by seed, so that what is cut short is even."""
    entries = [(name, task, chosen[name]) for name in args.recipes for task in args.tasks]
    if not args.no_controls:
        entries += [(name, args.tasks[0], ("--algo", "grpo", *flags)) for name, flags in CONTROLS.items()]
    for seed in range(args.seeds):
        for name, task, flags in entries:
            steps = ("--steps", str(args.steps)) if args.steps else ()
            yield name, task, seed, (*flags, *TASKS[task], *steps)


def run_of(
    kept: Kept, args: argparse.Namespace, name: str, task: str, seed: int, flags: tuple[str, ...]
) -> Learned:
    """The kept run, or a new one."""
    if (known := kept.find(name, task, seed, flags)) is not None:
        return known
    folder = args.work / f"learning-{name}-{task}-{seed}".replace(" ", "_")
    made = train(folder, "--model", "qwen3", "--task", task, "--seed", str(seed), *flags)
    score = f"eval/{task}/score"
    run = Learned(
        recipe=name,
        task=task,
        seed=seed,
        flags=flags,
        seconds=made.seconds,
        points=[(row["step"], row[score]) for row in made.rows if score in row],
    )
    kept.add(run)
    say(f"{name}, {task}, seed {seed}: {run.before:.3f} to {run.after:.3f} in {run.seconds:.0f} s")
    return run


def _row(runs: Sequence[Learned]) -> Row:
    return {
        "recipe": f"`{runs[0].recipe}`",
        "task": f"`{runs[0].task}`",
        **outcome(runs),
        f"seeds ≥ {LEARNT}": sum(run.after >= LEARNT for run in runs),
    }


def _control(runs: Sequence[Learned]) -> Row:
    most = max(run.after for run in runs)
    return {
        "negative control": runs[0].recipe,
        "task": f"`{runs[0].task}`",
        "seeds": len(runs),
        "held-out before": fmean(run.before for run in runs),
        "most after": most,
        "steps": runs[0].points[-1][0],
        f"learns nothing (< {NOTHING})": verdict(most < NOTHING),
    }


if __name__ == "__main__":
    main()
