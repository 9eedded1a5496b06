"""Low-rank adapters beside frozen matrices: the table `[lora]`, and what a trainer is told of an adapter."""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic.fields import FieldInfo

from rlcore.api.config import Table
from rlcore.api.marks import COMMON, TRAINING, setting

ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer of a decoder, without routers and the output layer."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that makes a folder one of PEFT, with `adapter_model.safetensors` beside it."""


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
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


def policy_tensor(policy: str, name: str) -> str:
    """The name under which a tensor of a policy's adapter is published; of the empty name, PEFT's own."""
    return f"{policy}:{name}" if policy else name


def policy_of(name: str) -> tuple[str, str]:
    """The inverse of `policy_tensor`: the policy and PEFT's name."""
    policy, _, tensor = name.rpartition(":")
    return policy, tensor


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

    @property
    def is_on(self) -> bool:
        """Whether an adapter is trained."""
        return bool(self.rank or self.source)


# A keyword of Python, so no statement of the class can name it.
_FROM: FieldInfo = setting("", "directory of PEFT with the first adapter; it says rank and targets", TRAINING)
LoraOptions.model_fields["from"] = FieldInfo.from_annotated_attribute(str, _FROM)
