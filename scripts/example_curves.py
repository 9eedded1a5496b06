"""Draw the curve of an example from the folder of its run.

python scripts/example_curves.py NAME RUN METRIC… [--evals METRIC…]    examples/NAME/curve.png

Metrics are keys of metrics.jsonl: lines of each step, and marks of each evaluation.
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
    given = parser.parse_args()
    lines = (given.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    draw(rows, given.metrics, given.evals, EXAMPLES / given.name / "curve.png")


def draw(rows: list[dict[str, float]], metrics: list[str], evals: list[str], path: Path) -> None:
    """Lines for `metrics`, joined marks for `evals`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained", dpi=110)
    for names, style in ((metrics, {"linewidth": 1.6}), (evals, {"marker": "o", "linestyle": ":"})):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(xlabel="step")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
