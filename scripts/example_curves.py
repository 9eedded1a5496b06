"""Draw the curve of an example from the folder of its run.

python scripts/example_curves.py NAME RUN METRIC… [--evals METRIC…]    examples/NAME/curve.png

Metrics are keys of metrics.jsonl: lines of each step, and marks of each evaluation. `--beside LABEL=RUN`
draws the evaluations of further runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("metrics", nargs="+")
    parser.add_argument("--evals", nargs="*", default=[])
    parser.add_argument("--beside", nargs="*", default=[], metavar="LABEL=RUN")
    given = parser.parse_args()
    further = [text.partition("=") for text in given.beside]
    beside = {label: rows_of(Path(run)) for label, _, run in further}
    draw(rows_of(given.run), given.metrics, given.evals, beside, EXAMPLES / given.name / "curve.png")


def rows_of(run: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.jsonl."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def draw(
    rows: list[dict[str, float]],
    metrics: list[str],
    evals: list[str],
    beside: dict[str, list[dict[str, float]]],
    path: Path,
) -> None:
    """Lines for `metrics`, joined marks for `evals`, of `rows` and of the runs `beside` it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained", dpi=110)
    line, marks = {"linewidth": 1.6}, {"marker": "o", "linestyle": ":"}
    drawn = [(name, rows, name, line) for name in metrics] + [(name, rows, name, marks) for name in evals]
    drawn += [(f"{name}, {label}", of, name, marks) for label, of in beside.items() for name in evals]
    for label, of, name, style in drawn:
        points = [(row["step"], row[name]) for row in of if name in row]
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="step")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
