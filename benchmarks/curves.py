"""Reward and held-out exact match over the steps, for each procedural task, as pictures for the documents."""

from __future__ import annotations

from pathlib import Path

from common import IMAGES, CommandRun, Row, machine, parser, publish, say, table, train

TASKS: dict[str, tuple[str, ...]] = {
    "copy": ("--steps", "100"),
    "reverse": ("--steps", "400"),
    "sort": ("--steps", "400", "--lr-schedule", "linear"),
    "add": ("--steps", "1000", "--lr-schedule", "linear"),
}
"""What each task needs beyond the preset."""
LEARNT = 0.95


def main() -> None:
    """Train each task once, through the command line."""
    options = parser(__doc__)
    options.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="which ones")
    options.add_argument("--steps", type=int, help="fewer steps (for a trial)")
    options.add_argument("--seed", type=int, default=0, help="of the runs")
    args = options.parse_args()
    facts = machine(args.threads)
    rows: list[Row] = []
    runs: dict[str, CommandRun] = {}
    for task in args.tasks:
        flags = [*TASKS[task], *(("--steps", str(args.steps)) if args.steps else ())]
        fixed = ("--algo", "grpo", "--model", "qwen3", "--task", task, "--seed", str(args.seed))
        runs[task] = train(args.work / f"curve-{task}", *fixed, *flags)
        rows.append(_row(task, runs[task]))
        say(f"{task}: exact match {runs[task].summary['eval'][task]:.3f} after {runs[task].seconds:.0f} s")
    images = args.work if args.dry else IMAGES
    picture = draw(runs, images / "curves.png")
    text = f"{table(rows)}\n\n![Reward and held-out exact match](images/{picture.name})"
    points = {task: _scores(task, run) for task, run in runs.items()}
    publish("curves", facts, {"rows": rows, "exact_match": points}, text, dry=args.dry)


def _scores(task: str, run: CommandRun) -> list[tuple[int, float]]:
    """(step, held-out exact match) of each evaluation."""
    name = f"eval/{task}/score"
    return [(row["step"], row[name]) for row in run.rows if name in row]


def _row(task: str, run: CommandRun) -> Row:
    scores = _scores(task, run)
    return {
        "task": f"`--task {' '.join((task, *TASKS[task]))}`",
        "exact match before": scores[0][1],
        "after": scores[-1][1],
        f"first evaluation ≥ {LEARNT}": next(
            (f"step {step}" for step, at in scores if at >= LEARNT), "never"
        ),
        "reward at the end": run.steps[-1]["rollout/reward_mean"],
        "seconds": run.seconds,
    }


def draw(runs: dict[str, CommandRun], path: Path) -> Path:
    """One panel a task."""
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
            *zip(*_scores(task, run), strict=True),
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
