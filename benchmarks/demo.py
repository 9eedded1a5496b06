"""The demo, from several seeds: does a newcomer see it learn, and how soon?"""

from __future__ import annotations

from common import Row, machine, parser, publish, say, table, train, verdict

EXACT, SECONDS, MOST_MISSES = 0.95, 90.0, 1


def main() -> None:
    """Run `rlcore train --algo grpo --model qwen3` from each seed."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5, help="runs, with the seeds 0, 1, …")
    options.add_argument("--steps", type=int, help="fewer steps than the preset has (for a trial)")
    args = options.parse_args()
    facts = machine(args.threads)
    steps = ("--steps", str(args.steps)) if args.steps else ()
    rows: list[Row] = []
    for seed in range(args.seeds):
        flags = ("--algo", "grpo", "--model", "qwen3", "--seed", str(seed), *steps)
        run = train(args.work / f"demo-{seed}", *flags)
        (name, exact), *_ = run.summary["eval"].items()
        rows.append(
            {
                "seed": seed,
                "exact match before": run.rows[0][f"eval/{name}/score"],
                "exact match after": exact,
                "first step, s": run.first_step_s,
                "whole command, s": run.seconds,
                f"≥ {EXACT} within {SECONDS:g} s": verdict(exact >= EXACT and run.seconds <= SECONDS),
            }
        )
        say(f"seed {seed}: exact match {exact:.3f} after {run.seconds:.1f} s")
    met = sum("yes" in row.values() for row in rows)
    text = (
        f"{table(rows)}\n\n{met} of {len(rows)} seeds meet the target (asked for: {len(rows) - MOST_MISSES})."
    )
    publish("demo", facts, {"rows": rows, "met": met}, text, dry=args.dry)


if __name__ == "__main__":
    main()
