"""The evaluations of a run: `--eval NAME=PATH`, with settings of their own in `[eval.NAME]`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from rlcore.api.config import Config
from rlcore.api.part import Part, RewardPart
from rlcore.api.part_config import DataConfig
from rlcore.api.records import Kind
from rlcore.compose.lookup import DATA, TASK
from rlcore.plugins.registry import Entry

EVAL = "eval"

PARTS = (Kind.REWARD, Kind.GENERATOR)
"""The parts of the run that an evaluation may replace."""


class EvalConfig(Config):
    """How one set is evaluated. By default greedily, with one answer to each prompt."""

    samples: int = Field(1, ge=1, le=10_000, description="answers to each prompt")
    temperature: float = Field(0.0, ge=0, le=100, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of tokens of this probability")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0, lt=1, description="drop tokens below this share of the most probable one")
    max_tokens: int | None = Field(
        None, ge=1, description="a longer response is truncated; none: --max-response-tokens"
    )
    prompts: int | None = Field(
        None,
        ge=1,
        description="at most this many prompts; none: in a run as many as --eval-prompts, in rlcore eval all",
    )
    score_by: Literal["auto", "exact_match", "reward"] = Field(
        "auto", description="what an answer is judged by; auto: the reward, if there is one"
    )
    solved_at: float = Field(1.0, description="an answer with at least this score counts in pass@k")


def flat_source(source: Part, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """What chooses `source`, and its settings, by names that begin with `prefix`. `data` is its path."""
    settings = source.flat(f"{prefix}source")
    if isinstance(source.config, DataConfig):
        return {f"{prefix}{DATA}": settings.pop(f"{prefix}source.path")}, settings
    return {f"{prefix}{TASK}": source.name}, settings


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """One evaluation, resolved. `reward`, `generator`: its own; None: it uses those of the run."""

    name: str
    config: EvalConfig
    source: Part
    reward: Part | None = None
    generator: Part | None = None

    def judged_by(self, of_run: tuple[RewardPart, ...]) -> tuple[RewardPart, ...]:
        """The rewards that judge it: its own, or those of the run."""
        return of_run if self.reward is None else (RewardPart(**vars(self.reward)),)

    def flat(self) -> dict[str, Any]:
        """Its settings by their dotted names."""
        table = f"{EVAL}.{self.name}"
        flat, source = flat_source(self.source, f"{table}.")
        flat |= {f"{table}.{key}": value for key, value in self.config.model_dump(mode="json").items()}
        for kind in PARTS:
            part: Part | None = getattr(self, kind)
            if part is not None:
                flat |= {f"{table}.{kind}": part.name, **part.flat(f"{table}.{kind}")}
        return flat | source


@dataclass(frozen=True, kw_only=True)
class EvalChoice:
    """One evaluation of a selection: its parts are chosen, its settings not yet read."""

    name: str
    source: Entry
    parts: Mapping[Kind, Entry]

    @property
    def table(self) -> str:
        """`eval.NAME`."""
        return f"{EVAL}.{self.name}"

    def tables(self) -> Iterator[tuple[str, Entry]]:
        """Its parts, each with the table that its settings stand in."""
        yield f"{self.table}.source", self.source
        for kind, entry in self.parts.items():
            yield f"{self.table}.{kind}", entry

    def choices(self) -> tuple[str, ...]:
        """The dotted names of the settings that choose its parts."""
        return tuple(f"{self.table}.{key}" for key in (DATA, TASK, *PARTS))
