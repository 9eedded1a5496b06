"""A plugin with one part of each kind, given as a file."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlcore.api.ability import Ability
from rlcore.api.hookspecs import hookimpl
from rlcore.api.part_config import (
    AdvantageConfig,
    ClusterConfig,
    CorrectionConfig,
    FilterConfig,
    LossConfig,
    Neighbor,
    ProducerConfig,
    RewardConfig,
    TrainerConfig,
    ValueLossConfig,
)
from rlcore.api.records import Algorithm, Component, ForeignSetting, ModelFamily
from rlcore.api.run_config import RunConfig


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class EstimateConfig(AdvantageConfig):
    min_group_size: ClassVar[int] = 3

    center: bool = Field(True, description="subtract the mean")


class ClipConfig(LossConfig):
    clip: float = Field(0.2, gt=0, le=1, description="a bound")
    bound: float | None = Field(None, gt=1, description="another bound")


class OtherConfig(LossConfig):
    delta: float = Field(0.5, gt=0, description="a distance")


class ManyConfig(RewardConfig):
    words: tuple[str, ...] = Field((), description="some words")
    numbers: tuple[int, ...] = Field((1, 2), description="some numbers")
    pair: tuple[float, float] = Field((0.0, 1.0), description="two numbers")
    mode: Literal["soft", "hard"] = Field("soft", description="how")
    color: Color = Field(Color.RED, description="which")
    folder: Path | None = Field(Path("here"), description="where")
    table: dict[str, int] = Field(default_factory=dict, description="what")


class SquareConfig(ValueLossConfig):
    below: float = Field(0.0, ge=0, description="a bound")


class GymConfig(TrainerConfig):
    table: ClassVar[str] = "gymlib"
    fields_of: ClassVar[str] = "gymlib's settings"
    abilities: ClassVar[frozenset[Ability]] = frozenset(Ability)
    synonyms: ClassVar[Mapping[str, str]] = {"tp": "width"}

    def model_ranks(self, fields: Mapping[str, Any]) -> int:
        return int(fields.get("width", 1))

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        if "late" in fields:
            yield f"--gymlib.late: found it beside {', '.join(sorted(roles)) or 'nothing'}."

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        if hf_config.get("num_attention_heads", 0) % int(fields.get("width", 1)):
            yield f"--gymlib.width: found {fields['width']}, expected a divisor."


class DropConfig(FilterConfig):
    below: float = Field(0.0, ge=0, description="a bound")


class WeighConfig(CorrectionConfig):
    high: float = Field(2.0, gt=0, description="a bound")

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        known = [f"{one.kind} {one.name}" for one in neighbors if one.name == "move"]
        if run.optimizer.lr > 2:
            yield f"--correction: found {name!r}, which knows {', '.join(known)}; expected a smaller --lr."


class MoveConfig(CorrectionConfig):
    pass


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    yield Algorithm(
        name="toy",
        summary="a recipe",
        paper="",
        parts={"advantage": "estimate", "loss": "clip", "filter": ["drop"]},
        settings={"group_size": 5, "lr": 0.5},
        tables={"loss": {"clip": 0.3}, "filter": {"drop": {"below": 0.25}}},
    )

    yield Algorithm(
        name="off_policy",
        summary="a recipe with a correction",
        paper="",
        parts={"advantage": "estimate", "loss": "other", "correction": ["weigh"]},
        tables={"correction": {"weigh": {"high": 4.0}}},
    )


@hookimpl
def rlcore_trainers() -> Iterable[Component]:
    yield Component(name="gym", factory="toy:Gym", summary="x", config=GymConfig, default=True)
    yield Component(name="bare", factory="toy:Bare", summary="x", config=BareConfig)


class BareConfig(TrainerConfig):
    """A trainer that declares nothing."""

    needs_bridge: ClassVar[bool] = False


class HostsConfig(ClusterConfig):
    hosts: int = Field(1, ge=1, description="hosts to wait for")


@hookimpl
def rlcore_clusters() -> Iterable[Component]:
    yield Component(name="hosts", factory="toy:Hosts", summary="x", config=HostsConfig, default=True)


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(name="estimate", factory="toy:Estimate", summary="x", config=EstimateConfig)


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    yield Component(
        name="clip",
        factory="toy:Clip",
        summary="x",
        config=ClipConfig,
        suggests={"lr": 0.1, "minibatches": 2},
    )
    yield Component(name="other", factory="toy:Other", summary="x", config=OtherConfig)


@hookimpl
def rlcore_value_losses() -> Iterable[Component]:
    yield Component(name="square", factory="toy:Square", summary="x", config=SquareConfig)


@hookimpl
def rlcore_corrections() -> Iterable[Component]:
    yield Component(name="weigh", factory="toy:Weigh", summary="x", config=WeighConfig)
    yield Component(name="move", factory="toy:Move", summary="x", config=MoveConfig)


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(name="single_turn", factory="toy:Generate", summary="x", default=True)


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    yield Component(name="token_match", factory="toy:Match", summary="x", default=True)
    yield Component(name="many", factory="toy:Many", summary="x", config=ManyConfig)


class TreeConfig(ProducerConfig):
    width: int = Field(2, ge=1, description="answers that are kept")


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    yield Component(name="tree", factory="toy:Tree", summary="x", config=TreeConfig)


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    yield Component(name="drop", factory="toy:Drop", summary="x", config=DropConfig)
    yield Component(name="keep", factory="toy:Keep", summary="x")


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    yield ForeignSetting(framework="verl", name="rollout_batch", setting="prompts_per_step", command="x")
    yield ForeignSetting(framework="verl", name="shards", setting="gymlib.shards", command="x")
    yield ForeignSetting(framework="verl", name="balance_batch", command="rlcore import verl --balance-batch")
    yield ForeignSetting(framework="verl", name="fused_*", command="rlcore import verl --fused-*")
    yield ForeignSetting(framework="trl", name="beams", hint="here it is --n (as many)")
    yield ForeignSetting(framework="verl", name="share", setting="other.share", command="rlcore import x")
    yield ForeignSetting(framework="toy 0.1", name="nodes", hint="use --cluster.hosts in place of it")


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    yield ModelFamily(
        name="tiny",
        factory="toy:Bridge",
        summary="x",
        trainer="gym",
        architectures=("TinyForCausalLM",),
        preset="toy:preset",
        suggests={"lr": 0.2, "minibatches": 4, "prompts_per_step": 16, "max_prompt_tokens": 32},
    )
    yield ModelFamily(
        name="large", factory="toy:Bridge", summary="x", trainer="gym", architectures=("LargeForCausalLM",)
    )
