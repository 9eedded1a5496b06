"""Low-rank adapters beside frozen matrices: their tables, and what a trainer is told of an adapter."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from pydantic.fields import FieldInfo

from rlcore.api.config import Table
from rlcore.api.marks import COMMON, PATH, TRAINING, setting
from rlcore.api.overlay import Overlay

ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer of a decoder, without routers and the output layer."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that makes a folder one of PEFT, with `adapter_model.safetensors` beside it."""


@dataclass(frozen=True, kw_only=True)
class AdapterSpec(Overlay):
    """An adapter of the policy (https://arxiv.org/abs/2106.09685): each targeted W becomes W + scale · B · A.

    A is [rank, inputs], B is [outputs, rank]. A target is `ALL_LINEAR`, the end of a module's name, or a
    regular expression of the whole name; modules have their Hugging Face names, without `.weight`. `dropout`:
    of A's input, while training. `seed`: of the first values of A; B begins at 0. `source`: a directory of
    PEFT with the first values of both; empty: there is none. `publish`: what `hf_tensors` gives.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = (ALL_LINEAR,)
    dropout: float = 0.0
    rslora: bool = False
    seed: int = 0
    source: str = ""
    publish: Literal["merged", "adapter"] = "merged"

    @property
    def scale(self) -> float:
        """What multiplies B · A; with `rslora`, by the root of the rank (https://arxiv.org/abs/2312.03732)."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def travels(self) -> bool:
        return self.publish == "adapter"


class LoraOptions(Table):
    """The adapter that is trained in place of the model's weights."""

    rank: int = setting(0, "rank of the trained adapter; 0: the whole model trains", COMMON | TRAINING, ge=0)
    alpha: float = setting(32.0, "the adapter's product is multiplied by alpha / rank", gt=0)
    targets: tuple[str, ...] = setting((ALL_LINEAR,), "modules: all-linear, ends of names, or patterns")
    dropout: float = setting(0.0, "dropout of the adapter's input while training", ge=0, lt=1)
    rslora: bool = setting(False, "multiply by alpha / sqrt(rank) instead")
    publish: Literal["merged", "adapter"] = setting(
        "merged",
        "what engines get; merged: whole weights; adapter: A and B, beside the base that they loaded",
    )

    @property
    def source(self) -> str:
        """`from`: the directory of PEFT; empty: there is none."""
        return str(getattr(self, "from"))


# A keyword of Python, so no statement of the class can name it.
_FROM = setting("", "directory of PEFT with the first adapter; it says rank and targets", TRAINING | PATH)
LoraOptions.model_fields["from"] = FieldInfo.from_annotated_attribute(str, _FROM)


class NamedPolicy(Table):
    """A policy beside the run's own, `[policy.NAME]`: an adapter over the same base, trained with it."""

    lr: float | None = setting(None, "peak learning rate of a further policy; none: --lr", ge=0, le=10)
    rank: int | None = setting(None, "rank of its adapter; none: --lora.rank", ge=1)
    alpha: float | None = setting(None, "alpha of its adapter; none: --lora.alpha", gt=0)
    targets: tuple[str, ...] | None = setting(None, "modules of its adapter; none: --lora.targets")

    @property
    def settings(self) -> dict[str, Any]:
        """What it has of its own, by the names of the run's settings."""
        own = {key if key == "lr" else f"lora.{key}": value for key, value in self}
        return {"lora.from": "", **{name: value for name, value in own.items() if value is not None}}


class PolicyTables(Table):
    """The policies beside the run's own, by their names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, NamedPolicy]
    named: ClassVar[type[Table] | None] = NamedPolicy
