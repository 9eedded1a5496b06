"""Reward and held-out exact match over the steps, of each procedural task and of presets, as pictures."""

from __future__ import annotations

import re
from pathlib import Path

from common import IMAGES, CommandRun, Row, machine, parser, publish, say, table, train

QWEN3 = ("--model", "qwen3", "--task")
SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "curves": {
        "copy": (*QWEN3, "copy", "--steps", "100"),
        "reverse": (*QWEN3, "reverse", "--steps", "400"),
        "sort": (*QWEN3, "sort", "--steps", "400", "--lr-schedule", "linear"),
        "add": (*QWEN3, "add", "--steps", "1000", "--lr-schedule", "linear"),
    },
    "presets": {
        name: ("--model", name, "--task", "copy", "--steps", "100")
        for name in ("qwen3_next", "qwen3_5", "gpt_oss", "deepseek_v32", "glm5")
    },
}
"""By set and picture, the flags of each run: every task by one preset, and `copy` by those of 2026."""
LEARNT = 0.95


def main() -> None:
    """Train each once, through the command line."""
    options = parser(__doc__)
    options.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), help="which pictures")
    options.add_argument("--only", nargs="+", help="these runs of them")
    options.add_argument("--steps", type=int, help="fewer steps (for a trial)")
    options.add_argument("--seed", type=int, default=0, help="of the runs")
    args = options.parse_args()
    facts = machine(args.threads)
    for each in args.sets:
        runs = {name: flags for name, flags in SETS[each].items() if name in (args.only or SETS[each])}
        more = (*(("--steps", str(args.steps)) if args.steps else ()), "--seed", str(args.seed))
        found = {}
        for name, flags in runs.items():
            found[name] = train(args.work / f"curve-{name}", "--algo", "grpo", *flags, *more)
            say(f"{name}: exact match {_scores(found[name])[-1][1]:.3f} after {found[name].seconds:.0f} s")
        store(each, found, facts, args.work if args.dry else IMAGES, dry=args.dry)


def store(name: str, runs: dict[str, CommandRun], facts: Row, images: Path, *, dry: bool) -> None:
    """The table and the picture of a set."""
    rows = [_row(SETS[name][each], run) for each, run in runs.items()]
    picture = draw(runs, images / f"{name}.png")
    text = f"{table(rows)}\n\n![Reward and held-out exact match](images/{picture.name})"
    points = {each: _scores(run) for each, run in runs.items()}
    publish(name, facts, {"rows": rows, "exact_match": points}, text, dry=dry)


def _scores(run: CommandRun) -> list[tuple[int, float]]:
    """(step, held-out exact match) of each evaluation."""
    found = ((row["step"], key, row[key]) for row in run.rows for key in row)
    return [(step, at) for step, key, at in found if re.fullmatch(r"eval/\w+/score", key)]


def _row(flags: tuple[str, ...], run: CommandRun) -> Row:
    scores = _scores(run)
    return {
        "run": f"`{' '.join(flags)}`",
        "exact match before": scores[0][1],
        "after": scores[-1][1],
        f"first evaluation ≥ {LEARNT}": next(
            (f"step {step}" for step, at in scores if at >= LEARNT), "never"
        ),
        "reward at the end": run.steps[-1]["rollout/reward_mean"],
        "seconds": run.seconds,
    }


def draw(runs: dict[str, CommandRun], path: Path) -> Path:
    """One panel a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(3.4 * len(runs), 2.8), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, (task, run) in zip(panels[0], runs.items(), strict=True):
        rewards = [(row["step"], row["rollout/reward_mean"]) for row in run.steps]
        panel.plot(*zip(*rewards, strict=True), label="mean reward", color="#9aa5b1", linewidth=1.2)
        panel.plot(
            *zip(*_scores(run), strict=True),
            label="held-out exact match",
            color="#0b6e4f",
            marker="o",
            ms=3,
        )
        panel.set(title=task, xlabel="step", ylim=(-0.02, 1.02))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    main()
