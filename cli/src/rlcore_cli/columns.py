"""The columns of the live table and of the log lines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlcore.api.columns import Input, TrainsOn
from rlcore.api.types import Json

_EVAL = ("eval/", "/score")


@dataclass(frozen=True)
class Column:
    """A column.

    `title`: its heading; `key`: the metric; `meaning`: for the legend, if the title does not explain it.
    """

    title: str
    key: str
    meaning: str = ""


COLUMNS = (
    Column("reward", "rollout/reward_mean"),
    Column("eval", "eval"),
    Column("KL", "train/ppo_kl", "old to new policy"),
    Column("entr.", "train/entropy", "entropy"),
    Column("clip", "train/clip_fraction", "share of tokens"),
    Column("grad", "train/grad_norm"),
    Column("gap", "train/kl_engine", "trainer to engine"),
    Column("tok/s", "rollout/tokens_per_s"),
    Column("gen", "time/generate_s", "seconds"),
    Column("rew", "time/reward_s", "seconds"),
    Column("train", "time/train_s", "seconds"),
    Column("publ", "time/publish_s", "seconds"),
)


RESPONSE_COLUMNS = (
    Column("loss", "train/loss"),
    Column("eval", "eval"),
    Column("margin", "train/reward_margin", "of pairs"),
    Column("acc.", "train/accuracy", "share of pairs"),
    Column("entr.", "train/entropy", "entropy"),
    Column("grad", "train/grad_norm"),
    Column("tok/s", "rollout/tokens_per_s"),
    Column("train", "time/train_s", "seconds"),
)
"""The columns of a run on responses that the data give."""

REFERENCE_KL = Column("KL", "train/kl_reference", "policy to reference")
"""What the column KL is in a run that has a reference."""


def columns_of(trains_on: TrainsOn, needs: Collection[Input]) -> Sequence[Column]:
    """The columns of a run that trains on this and needs these inputs."""
    if trains_on is not TrainsOn.ROLLOUTS:
        return RESPONSE_COLUMNS
    if Input.REFERENCE_LOG_PROBS not in needs:
        return COLUMNS
    return [REFERENCE_KL if column.title == REFERENCE_KL.title else column for column in COLUMNS]


def legend(columns: Sequence[Column]) -> str:
    """What the titles mean. Titles with the same meaning stand together."""
    titles: dict[str, list[str]] = {}
    for column in columns:
        if column.meaning:
            titles.setdefault(column.meaning, []).append(column.title)
    return " · ".join(f"{' '.join(named)}: {meaning}" for meaning, named in titles.items())


def evaluations(row: Mapping[str, Json]) -> dict[str, float]:
    """The score of each held-out set in a step's row. Empty without an evaluation."""
    prefix, suffix = _EVAL
    return {
        key[len(prefix) : -len(suffix)]: value
        for key, value in row.items()
        if key.startswith(prefix) and key.endswith(suffix) and isinstance(value, float | int)
    }


def cells(row: Mapping[str, Json], columns: Sequence[Column] = COLUMNS) -> list[str]:
    """The row's text for each of `columns`; empty where the step lacks the metric."""
    scores = evaluations(row)
    values = {**row, "eval": sum(scores.values()) / len(scores)} if scores else row
    return [compact(values.get(column.key)) for column in columns]


def compact(value: Json) -> str:
    """A number in at most 7 characters. Anything else: an empty text."""
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
