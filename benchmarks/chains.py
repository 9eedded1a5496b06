"""Does one run learn from another? Chains of runs: `opd` from a teacher, `sft` then another, `dpo` on pairs.

Each run is the real command. A stage is kept in a JSON file as soon as it ends, with the folder that it made,
and not made again while that folder is there and no setting of it, or of a stage before it, has changed: the
whole can be made in pieces (`--chains`, `--seeds`).
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common import IMAGES, RLCORE, command, machine, parser, publish, say, table, train
from learned import Kept, Learned, draw, grouped, outcome, picture_of

TASK = "reverse"
LIMITS = ("--max-prompt-tokens", "32", "--max-response-tokens", "8")
"""What the tiny preset suggests, for a run that starts from an exported model."""

Flags = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A run of a chain. `flags`: of the folder in which the stages of its seed are, the folder's neighbors.

    `steps`: of training. `makes_pairs`: its saved rollouts become the pairs of a later stage.
    """

    algo: str
    steps: int
    flags: Callable[[Path], Flags] = lambda folder: ("--model", "qwen3")
    makes_pairs: bool = False


def _last(folder: Path, stage: str) -> str:
    """The checkpoint in which a stage ended."""
    checkpoints = (folder / stage / "checkpoints").iterdir()
    return str(max(checkpoints, key=lambda path: int(path.name)))


def _from(stage: str, *flags: str) -> Callable[[Path], Flags]:
    return lambda folder: ("--model", str(folder / f"{stage}-model"), *LIMITS, *flags)


def _taught(*flags: str) -> Callable[[Path], Flags]:
    return lambda folder: ("--model", "qwen3", "--teacher.model", _last(folder, "teacher"), *flags)


def _pairs(folder: Path) -> Flags:
    return (*_from("sft", "--lr", "1e-4")(folder), "--data", str(folder / "pairs.jsonl"))


WARM = (
    "--lr",
    "1e-3",
    "--temperature",
    "1",
    "--eval-every",
    "20",
    "--group-size",
    "8",
    "--entropy-coef",
    "0",
)
TEACHER = Stage(algo="grpo", steps=300)
SFT = Stage(algo="sft", steps=100, flags=lambda folder: ("--model", "qwen3", "--lr", "3e-3"))
CHAINS: dict[str, dict[str, Stage]] = {
    "opd, sampled token": {
        "teacher": TEACHER,
        "opd": Stage(algo="opd", steps=200, flags=_taught()),
    },
    "opd, likeliest tokens": {
        "teacher": TEACHER,
        "opd-top": Stage(algo="opd", steps=100, flags=_taught("--loss.top-k", "4")),
    },
    "sft, grpo": {
        "sft": SFT,
        "grpo": Stage(algo="grpo", steps=60, flags=_from("sft", *WARM)),
    },
    "sft, remax": {
        "sft": SFT,
        "remax": Stage(algo="remax", steps=60, flags=_from("sft", *WARM)),
    },
    "sft, dpo": {
        "sft": SFT,
        "rollouts": Stage(
            algo="grpo",
            steps=10,
            flags=_from("sft", "--lr", "0", "--save-rollouts-every", "1", "--prompts-per-step", "128"),
            makes_pairs=True,
        ),
        "dpo": Stage(algo="dpo", steps=60, flags=_pairs),
    },
}
"""Name of a chain → its stages by their folders; chains that share a stage share its run.

`rollouts` trains nothing (learning rate 0): it only samples what the pairs of `dpo` are made of."""

PICTURES = {
    "opd": (
        ("opd, sampled token", "teacher"),
        ("opd, sampled token", "opd"),
        ("opd, likeliest tokens", "opd-top"),
    ),
    "sft": (("sft, grpo", "sft"), ("sft, grpo", "grpo")),
    "remax-warm": (("sft, remax", "sft"), ("sft, remax", "remax")),
    "dpo": (("sft, dpo", "dpo"),),
}
"""The curves on the page of each algorithm: (chain, stage)."""


def main() -> None:
    """Make what is missing, then show all that was asked for."""
    options = parser(__doc__)
    options.add_argument(
        "--chains", nargs="+", default=list(CHAINS), choices=list(CHAINS), metavar="CHAIN", help="which ones"
    )
    options.add_argument("--seeds", type=int, default=3, help="runs of each, with the seeds 0, 1, …")
    options.add_argument("--steps", type=int, help="at most so many in each stage (for a trial)")
    options.add_argument("--runs", type=Path, default=None, help="the finished stages (default: in --work)")
    args = options.parse_args()
    facts = machine(args.threads)
    kept = Kept(args.runs or args.work / "chains_runs.json")
    found = list(_made(kept, args))
    rows = [
        {"chain": chain, "stage": f"`{runs[0].recipe}`", **outcome(runs)}
        for chain in args.chains
        for runs in grouped([run for of, run in found if of == chain])
    ]
    images = args.work if args.dry else IMAGES
    for name, stages in PICTURES.items():  # one for the page of each algorithm
        if runs := [run for stage in stages for chain, run in found if (chain, run.recipe) == stage]:
            draw(runs, images / picture_of(name))
    record = {"runs": [{"chain": chain, **asdict(run)} for chain, run in found]}
    publish("chains", facts, record, table(rows), dry=args.dry)


def _made(kept: Kept, args: Namespace) -> Iterator[tuple[str, Learned]]:
    """Every stage of the chosen chains, seed by seed, so that what is cut short is even."""
    for seed in range(args.seeds):
        folder = args.work / f"chains-{seed}"
        for chain in args.chains:
            history: Flags = ()
            for name, stage in CHAINS[chain].items():
                flags = _flags(folder, stage, args.steps)
                # what it came to depends on all stages up to it, and on no path
                history += (name, *(flag.replace(f"{folder}/", "") for flag in flags))
                run = kept.find(name, TASK, seed, history)
                if run is None or not (folder / name).exists():
                    run = _train(folder, name, stage, seed, flags, history)
                    kept.add(run)
                yield chain, run


def _flags(folder: Path, stage: Stage, most: int | None) -> Flags:
    """All that a stage is given, its seed and its folders apart. The stages before it are in `folder`."""
    given = stage.flags(folder)
    # given pairs hold nothing out, so the task is evaluated beside them
    asked = ("--eval", f"{TASK}={TASK}") if "--data" in given else ("--task", TASK)
    length = ("--steps", str(min(stage.steps, most or stage.steps)))
    return ("--algo", stage.algo, *given, *asked, *length)


def _train(folder: Path, name: str, stage: Stage, seed: int, flags: Flags, history: Flags) -> Learned:
    model, score = folder / f"{name}-model", f"eval/{TASK}/score"
    shutil.rmtree(model, ignore_errors=True)
    made = train(folder / name, *flags, "--seed", str(seed), "--export", str(model))
    if stage.makes_pairs:
        _make_pairs(folder, name)
    points = [(int(row["step"]), float(row[score])) for row in made.rows if score in row]
    run = Learned(recipe=name, task=TASK, seed=seed, flags=history, seconds=made.seconds, points=points)
    say(f"{name}, seed {seed}: {run.before:.3f} to {run.after:.3f} in {run.seconds:.0f} s")
    return run


def _make_pairs(folder: Path, name: str) -> None:
    out = folder / "pairs.jsonl"
    out.unlink(missing_ok=True)
    samples = sorted((folder / name / "samples").glob("rollout-*.jsonl"))
    command([str(RLCORE), "pairs", *map(str, samples), "--out", str(out)])


if __name__ == "__main__":
    main()
