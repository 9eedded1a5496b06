"""The columns of the live table and of the log lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlcore.api.types import Json

_EVAL = ("eval/", "/score")


@dataclass(frozen=True)
class Column:
    """`title`: above the column; `key`: the metric."""

    title: str
    key: str


COLUMNS = (
    Column("reward", "rollout/reward_mean"),
    Column("eval", "eval"),
    Column("KL", "train/ppo_kl"),
    Column("entr.", "train/entropy"),
    Column("clip", "train/clip_fraction"),
    Column("grad", "train/grad_norm"),
    Column("gap", "train/kl_engine"),
    Column("tok/s", "rollout/tokens_per_s"),
    Column("gen", "time/generate_s"),
    Column("rew", "time/reward_s"),
    Column("train", "time/train_s"),
    Column("publ", "time/publish_s"),
)
"""KL: of the policies before and after the update; gap: trainer against engine; the last four: seconds."""


GIVEN_COLUMNS = (
    Column("loss", "train/loss"),
    Column("eval", "eval"),
    Column("margin", "train/reward_margin"),
    Column("acc.", "train/accuracy"),
    Column("entr.", "train/entropy"),
    Column("grad", "train/grad_norm"),
    Column("tok/s", "rollout/tokens_per_s"),
    Column("train", "time/train_s"),
)
"""Those of a run on given responses; margin and accuracy are of pairs."""


def evaluations(row: Mapping[str, Json]) -> dict[str, float]:
    """The score of each held-out set in the row of a step; empty where there was no evaluation."""
    prefix, suffix = _EVAL
    return {
        key[len(prefix) : -len(suffix)]: value
        for key, value in row.items()
        if key.startswith(prefix) and key.endswith(suffix) and isinstance(value, float | int)
    }


def cells(row: Mapping[str, Json], columns: Sequence[Column] = COLUMNS) -> list[str]:
    """The row's texts, one for each of `columns`; empty where the step has no such metric."""
    scores = evaluations(row)
    values = {**row, "eval": sum(scores.values()) / len(scores)} if scores else row
    return [compact(values.get(column.key)) for column in columns]


def compact(value: Json) -> str:
    """A number in at most 7 characters; anything else is left empty."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return ""
    size = abs(value)
    if size >= 1e6:
        return f"{value:.0e}".replace("e+0", "e")
    if size >= 1e4:
        return f"{value / 1000:.0f}k"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1e-3 or size == 0:
        return f"{value:.3f}" if size < 1 else f"{value:.2f}"
    return f"{value:.1e}".replace("e-0", "e-")
