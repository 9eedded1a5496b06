"""`rlcore pairs`: pairs of responses from the samples that a run has saved."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from rlcore import DataError, parse_json

Row = dict[str, Any]


@click.command()
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path), help="The .jsonl file to write; a new one."
)
def pairs(samples: tuple[Path, ...], out: Path) -> None:
    """Pair the best and the worst response to each prompt in SAMPLES (RUN/samples/rollout-N.jsonl)."""
    if out.exists():
        raise DataError(f"--out {out}: exists already; name a file that does not.")
    paired = list(best_and_worst(row for path in samples for row in _rows(path)))
    if not paired:
        raise DataError(f"{samples[0]}: no prompt has two finished responses of different scores.")
    out.write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in paired))
    click.echo(f"{len(paired)} pairs: {out}")


def best_and_worst(rows: Iterable[Row]) -> Iterator[Row]:
    """A pair for each prompt whose finished responses differ in their scores; among equals, the first."""
    prompts: dict[str, list[Row]] = {}
    for row in rows:
        if row["score"] is not None and row["status"] == "completed":
            prompts.setdefault(row["prompt_id"], []).append(row)
    for answers in prompts.values():
        best, worst = (choose(answers, key=lambda row: float(row["score"])) for choose in (max, min))
        if best["score"] > worst["score"]:
            yield {
                "prompt": best["prompt"],
                "chosen": best["response"],
                "rejected": worst["response"],
                "label": best["label"],
            }


def _rows(path: Path) -> Iterator[Row]:
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            row = parse_json(line)
            if not {"prompt_id", "prompt", "response", "score", "status", "label"} <= row.keys():
                raise DataError(f"{path}, line {number}: expected a sample as a run saves it.")
            yield row
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: not the samples of a run ({error}).") from error
