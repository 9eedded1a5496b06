"""The models of a run: a table of settings for each beside the policy, and what a worker builds from it.

One mapping from the name of a role to its `RoleSpec` travels from the settings to the trainer, the checkpoint
and the resume. The code between these ends goes through the mapping, and names no role but the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator

from rlcore.api.columns import Input
from rlcore.api.config import Table
from rlcore.api.marks import PATH, RESUMABLE, setting
from rlcore.api.optimizer import LrSchedule, OptimizerOptions, OptimizerSettings, whole_steps
from rlcore.api.overlay import Overlay

if TYPE_CHECKING:
    from rlcore.api.model_hook import ModelHook
    from rlcore.api.part import ModelSpec
    from rlcore.api.run_config import RunConfig

POLICY = "policy"
"""The role that is trained for the run's sake. The other roles have the names of their tables, and further
policies those of `policy_role`.
"""

START = "start"
"""The `model` of a role that begins as the run's own model."""
BASE = "base"
"""The `model` of a role that is the policy without its overlay."""


class ModelKind(StrEnum):
    """What a role's model gives, and so which protocol of `rlcore.api.trainer` it has.

    `POLICY`: a language model that is trained (`TrainedPolicy`). `SCORER`: a language model that gives
    log-probs (`FrozenPolicy`). `VALUES`: a model that gives a value of each token (`TrainedValues`).
    """

    POLICY = "policy"
    SCORER = "scorer"
    VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """A model of the run, as every place between the settings and the trainer sees it.

    `model`: its directory, weights, dtype and fields of the trainer. `source`: `START`, `BASE`, or the
    directory that the user named. `optimizer`: None: the model never trains. `ranks`: train workers of its
    own; 0: the policy's workers hold it. `is_swapped`: its weights are in host memory, and take the policy's
    place for each forward pass. `refresh_every`: steps between copies of the policy into it; 0: never.
    `is_borrowed`: it has no model: it is the `base` of an `AdaptedPolicy`, or its `start` by `source`.

    Of policies alone: `overlay`: what is trained in place of the model's weights; a further policy is that
    alone, over the weights of `POLICY`. `replayed`: columns of the batch with an engine's choices, which it
    takes over in place of its own. `hooks` are shown the policy before its optimizer exists; parameters that
    they freeze (`requires_grad`) never change.
    """

    kind: ModelKind
    model: ModelSpec
    source: str = START
    optimizer: OptimizerSettings | None = None
    ranks: int = 0
    is_swapped: bool = False
    refresh_every: int = 0
    is_borrowed: bool = False
    replayed: frozenset[str] = frozenset()
    hooks: Sequence[ModelHook] = ()
    overlay: Overlay | None = None


class RoleOptions(Table):
    """The table of a role beside the policy."""

    kind: ClassVar[ModelKind] = ModelKind.SCORER
    column: ClassVar[Input]
    """What the role computes. A run that does not read it has no such role."""
    shares_tokenizer: ClassVar[bool] = False
    """Whether its tokenizer is compared with the run's. Of the other roles only config.json is."""

    model: str = ""
    ranks: int = setting(0, "train workers of its own; 0: the policy's workers hold it", RESUMABLE, ge=0)

    def spec(self, model: ModelSpec, run: RunConfig) -> RoleSpec:
        """The specification of the role in `run`, whose `steps` are known."""
        return RoleSpec(kind=self.kind, model=model, source=self.model, ranks=self.ranks)


class ReferenceOptions(RoleOptions):
    """The frozen model that the KL term keeps the policy near."""

    column: ClassVar[Input] = Input.REFERENCE_LOG_PROBS

    model: str = setting(
        START,
        "start: as the run's model began; base: --model itself; else a directory",
        PATH,
        min_length=1,
    )
    refresh_every: int = setting(0, "steps between copies of the policy into the reference; 0: never", ge=0)
    placement: Literal["resident", "swapped"] = setting(
        "resident",
        "resident: a model of its own; swapped: weights in host memory, which take the policy's place for "
        "each forward pass",
        RESUMABLE,
    )

    def spec(self, model: ModelSpec, run: RunConfig) -> RoleSpec:
        is_swapped = self.placement == "swapped"
        return replace(super().spec(model, run), is_swapped=is_swapped, refresh_every=self.refresh_every)


class CriticOptions(RoleOptions):
    """The value model, where the algorithm has one. Its optimizer has the policy's settings for none."""

    kind: ClassVar[ModelKind] = ModelKind.VALUES
    column: ClassVar[Input] = Input.VALUES

    model: str = setting(
        START, "start: the run's model, with a new head; else a directory", PATH, min_length=1
    )
    only_steps: int = setting(0, "first steps that train the critic alone", ge=0)
    lr: float = setting(1e-5, "peak learning rate of the critic", ge=0, le=10)
    lr_schedule: LrSchedule | None = setting(None, "its --lr-schedule; none: the policy's")
    min_lr: float | None = setting(None, "its --min-lr; none: the policy's", ge=0)
    warmup_steps: int | float | None = setting(None, "its --warmup-steps; none: the policy's", ge=0)
    weight_decay: float | None = setting(None, "its --weight-decay; none: the policy's", ge=0, le=10)
    clip_grad: float | None = setting(None, "its --clip-grad; none: the policy's", ge=0)

    _whole_warmup = field_validator("warmup_steps")(whole_steps)

    def optimizer(self, policy: OptimizerOptions) -> OptimizerOptions:
        """The critic's: `policy` with what the critic has of its own in its place."""
        names = OptimizerOptions.model_fields.keys()
        return policy.model_copy(
            update={name: value for name, value in self if name in names and value is not None}
        )

    def spec(self, model: ModelSpec, run: RunConfig) -> RoleSpec:
        options = self.optimizer(run.optimizer)
        # The policy's warm-up, a share of its own steps, is as long for the critic, which begins earlier.
        counted = run.steps - (self.only_steps if self.warmup_steps is None else 0)
        scheduled = options.scheduled(run.steps, options.warmup_of(counted))
        return replace(super().spec(model, run), optimizer=scheduled)


def policy_role(name: str) -> str:
    """The role of the further policy `name`; of the empty name, the run's own policy."""
    return f"{POLICY}.{name}" if name else POLICY


class ServedTeacher(Table):
    """One of several teachers that are engines: `[teacher.NAME]`."""

    url: str = Field(description="URL of an engine that scores tokens, or frozen:NAME of --frozen")


class TeacherOptions(RoleOptions):
    """The teacher of a distillation: a model on train workers, an engine, or several named engines."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ServedTeacher]
    named: ClassVar[type[Table] | None] = ServedTeacher
    column: ClassVar[Input] = Input.TEACHER_LOG_PROBS
    shares_tokenizer: ClassVar[bool] = True

    model: str = setting("", "the teacher: a model directory, or RUN/checkpoints/N of another run", PATH)
    url: str = setting(
        "",
        "the teacher: URL of an engine that scores tokens, or frozen:NAME of --frozen; for "
        "several teachers, --teacher.NAME.url each",
    )

    @property
    def urls(self) -> dict[str, str]:
        """Name → URL of each teacher that is an engine; the name of `url` is empty."""
        alone = {"": self.url} if self.url else {}
        return alone | {name: teacher.url for name, teacher in (self.__pydantic_extra__ or {}).items()}
