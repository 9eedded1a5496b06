"""Runs that learned: what each scored over its steps, where finished ones are kept, and their curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from common import Row

Points = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One finished run. `points`: (step, held-out exact match), the first before any training."""

    recipe: str
    task: str
    seed: int
    flags: tuple[str, ...]
    seconds: float
    points: Points

    @property
    def before(self) -> float:
        return self.points[0][1]

    @property
    def after(self) -> float:
        return self.points[-1][1]


class Kept:
    """The finished runs, in a JSON file that is written anew after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        self._runs = [
            Learned(**{**row, "flags": tuple(row["flags"]), "points": [(s, x) for s, x in row["points"]]})
            for row in rows
        ]

    def find(self, recipe: str, task: str, seed: int, flags: tuple[str, ...]) -> Learned | None:
        """The run of exactly these settings."""
        key = (recipe, task, seed, flags)
        return next((run for run in self._runs if (run.recipe, run.task, run.seed, run.flags) == key), None)

    def add(self, run: Learned) -> None:
        """Keep it."""
        self._runs.append(run)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps([asdict(each) for each in self._runs], indent=1) + "\n")


def grouped(found: Sequence[Learned]) -> list[list[Learned]]:
    """The seeds of each recipe and task."""
    groups: dict[tuple[str, str], list[Learned]] = {}
    for run in found:
        groups.setdefault((run.recipe, run.task), []).append(run)
    return list(groups.values())


def outcome(runs: Sequence[Learned]) -> Row:
    """What the seeds of one recipe came to: columns of a table."""
    after = [run.after for run in runs]
    return {
        "seeds": len(runs),
        "held-out before": fmean(run.before for run in runs),
        "after": fmean(after),
        "least and most": f"{min(after):.3f} to {max(after):.3f}",
        "steps": runs[0].points[-1][0],
        "seconds": fmean(run.seconds for run in runs),
    }


def picture_of(recipe: str) -> str:
    """The file with the curve of one recipe."""
    return f"learning-{recipe.replace('+', '_plus')}.svg"


def draw(runs: Sequence[Learned], path: Path) -> Path:
    """One panel a task, one line a recipe: the mean of the seeds, and from the least to the most a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "rlcore"  # the same file for the same numbers
    tasks = list(dict.fromkeys(run.task for run in runs))
    names = list(dict.fromkeys(run.recipe for run in runs))
    wheel = pyplot.colormaps["tab10" if len(names) <= 10 else "tab20"]
    colors = {name: wheel(number % 20) for number, name in enumerate(names)}
    figure, panels = pyplot.subplots(
        1, len(tasks), figsize=(4.2 * len(tasks) + 1.8, 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, task in zip(panels[0], tasks, strict=True):
        for group in grouped([run for run in runs if run.task == task]):
            steps = [step for step, _ in group[0].points]
            scores = list(zip(*([score for _, score in run.points] for run in group), strict=True))
            mean, low, high = (list(map(of, scores)) for of in (fmean, min, max))
            color, label = colors[group[0].recipe], group[0].recipe
            panel.plot(steps, mean, color=color, label=label, linewidth=1.4)
            panel.fill_between(steps, low, high, color=color, alpha=0.12)
        panel.set(title=task, xlabel="step", ylim=(-0.02, 1.02))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("held-out exact match")
    shown = [pair for panel in panels[0] for pair in zip(*panel.get_legend_handles_labels(), strict=True)]
    lines = {text: line for line, text in shown}
    figure.legend(lines.values(), lines.keys(), loc="outside right center", frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
