"""Steps per minute where the environment waits: one step off against synchronous; and what is wasted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from common import (
    BENCHMARKS,
    CommandRun,
    Row,
    endless,
    machine,
    pairs,
    parser,
    publish,
    say,
    table,
    train,
    verdict,
)

RATIO, WASTE = 1.3, 0.02
SKIPPED = 3
"""Steps before the pipeline is full."""

ONE_STEP_OFF = ("--max-staleness", "1")
OVER_SAMPLED = ("--max-staleness", "2", "--partial-rollouts", "--over-sample", "1.5")


def main() -> None:
    """The two sides alternate; then one run with over-sampling and partial rollouts."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=40, help="steps of a run")
    options.add_argument("--repeats", type=int, default=3, help="pairs of runs")
    args = options.parse_args()
    facts = machine(args.threads)
    model = endless(args.work / "endless")

    def run(name: str, *flags: str) -> CommandRun:
        return train(args.work / f"asynchrony-{name}", *_flags(args, str(model)), *flags)

    ours, theirs, ratio = pairs(
        lambda: per_minute(run("one-step-off", *ONE_STEP_OFF).steps),
        lambda: per_minute(run("synchronous").steps),
        args.repeats,
        "steps per minute, --max-staleness 1 against 0",
    )
    over = run("over-sampled", *OVER_SAMPLED)
    wasted = waste(over.steps)
    say(f"over-sampled: {wasted:.2%} of the tokens were given up")
    rows: list[Row] = [
        {"run": "synchronous", "steps per minute": theirs},
        {
            "run": "`--max-staleness 1`",
            "steps per minute": ours,
            "ratio": ratio,
            f"≥ {RATIO}": verdict(ratio >= RATIO),
        },
    ]
    over_row = {
        "run": f"`{' '.join(OVER_SAMPLED)}`",
        "steps per minute": per_minute(over.steps),
        "tokens given up, %": 100 * wasted,
        f"< {WASTE:.0%}": verdict(wasted < WASTE),
    }
    rows[0] |= {"ratio": None, f"≥ {RATIO}": None}
    publish(
        "asynchrony",
        facts,
        {"rows": [*rows, over_row]},
        f"{table(rows)}\n\n{table([over_row])}",
        dry=args.dry,
    )


def _flags(args: argparse.Namespace, model: str) -> tuple[str, ...]:
    sizes = {
        "--prompts-per-step": 8,
        "--group-size": 4,
        "--max-response-tokens": 96,
        "--steps": args.steps,
        "--eval-every": 0,
        "--eval-prompts": 8,
        "--threads": args.threads,
        "--tokens-per-rank": 8192,
    }
    plain = ("--algo", "grpo", "--model", model, "--task", "copy", "--generator", "waiting")
    plugin = ("--plugin", str(BENCHMARKS / "waiting.py"))
    return (*plain, *plugin, *(str(part) for pair in sizes.items() for part in pair))


def per_minute(steps: Sequence[Mapping[str, Any]]) -> float:
    """Of the steps after the first ones, publication included."""
    seconds = [row["time/step_s"] for row in steps[SKIPPED:]]
    return float(60 * len(seconds) / sum(seconds))


def waste(steps: Sequence[Mapping[str, Any]]) -> float:
    """Share of the sampled tokens that were given up, of those that are accounted for."""
    given_up = sum(row["rollout/tokens_discarded"] for row in steps)
    kept = sum(row["rollout/response_tokens"] for row in steps)
    return float(given_up / (given_up + kept))


if __name__ == "__main__":
    main()
