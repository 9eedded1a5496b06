"""`rlcore report`: what a report holds, of all that the page could ask for."""

from collections.abc import Iterator

from rlcore import Json
from rlcore_view.answers import Answers

FILES = 6
"""How many evaluations, and how many rollouts, a report holds: the newest, and the first."""
SAMPLES = 40
"""Whole samples of a file: those with the best and the worst scores, half and half."""
STEPS = 4
"""How many steps of the timeline a report holds: the newest, and the slowest."""


def held(answers: Answers) -> dict[str, Json]:
    """Path → answer. Without logs, which may hold anything."""
    by_path: dict[str, Json] = {"runs": answers.of("runs")}
    for number in range(len(answers.runs)):
        for path in _paths(answers, f"run/{number}"):
            by_path[path] = answers.of(path)
    return by_path | {path: answers.of(path) for path in ("metrics", "reference")}


def _paths(answers: Answers, run: str) -> Iterator[str]:
    yield from (
        f"{run}/series",
        f"{run}/alerts",
        f"{run}/dropped",
        f"{run}/settings",
        f"{run}/trace",
        f"{run}/samples",
    )
    bars = answers.of(f"{run}/trace")
    # the first step is slow in every run
    slowest = [bar["slowest"] for bar in sorted(bars[1:], key=lambda bar: -bar["longest"])[:1]]
    yield from {f"{run}/trace/{step}" for step in [*slowest, *(bar["to"] for bar in bars[-STEPS + 1 :])]}
    files = answers.of(f"{run}/samples")
    for kind in ("eval", "rollout"):
        names = [file["name"] for file in files if file["kind"] == kind]
        for name in {*names[:1], *names[-FILES + 1 :]}:
            yield f"{run}/samples/{name}"
            yield from _best_and_worst(answers, f"{run}/samples/{name}")


def _best_and_worst(answers: Answers, file: str) -> Iterator[str]:
    rows = answers.of(file)["rows"]

    def worth(row: Json) -> float:
        return float("-inf") if row["score"] is None else row["score"]

    # of equal ones the first, as the page lists them
    best = sorted(rows, key=lambda row: -worth(row))[: SAMPLES // 2]
    worst = sorted(rows, key=worth)[: SAMPLES // 2]
    yield from {f"{file}/{row['row']}": None for row in [*best, *worst]}
