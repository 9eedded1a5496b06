"""What a part's config tells core about the part.

A config class derives from the base class of its kind. The kinds without a base here (model, model hook,
tracker, callback, and a source that is a task) derive from `rlcore.Config`, or from `PartConfig` where they
may object to a run. What holds for every setting of the part is a class variable. What depends on settings
is a method or a property, which a config overrides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlcore.api.ability import Ability
from rlcore.api.columns import Column, Input, TopTokens, TrainsOn
from rlcore.api.config import Config
from rlcore.api.run_config import RunConfig
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import Json, Prompt


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """A part of a run, as another part's `complaints` sees it. `kind`: a `rlcore.Kind`."""

    kind: str
    name: str
    config: Config


class PartConfig(Config):
    """The base for all parts that may object to a run."""

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """Why the part cannot work in this run: sentences, each with the flag, what was found and what to
        change.

        rlcore refuses the run with the first one. `name`: of the part. `neighbors`: the run's advantage,
        losses, corrections, rewards and filters.
        """
        return ()


class GeneratorConfig(PartConfig):
    """Kind `generator`, for one that declares columns, or what it does with policies.

    Others derive from `Config` or `PartConfig`.
    """

    columns: ClassVar[Mapping[str, Column]] = {}
    """Those of its `Sample.extras` that are more than a number for each sample or response token."""

    @property
    def policy_advice(self) -> str | None:
        """What to change so that its requests name policies (`Request.policy`); None: they may already.

        rlcore refuses `[policy.NAME]` with it. A generator whose config has another base may name them.
        """
        return "choose another --generator"

    def policy_of(self, prompt: Prompt) -> Json:
        """The policy that the metadata of `prompt` name, if it reads such; None: it leaves that open. rlcore
        refuses a name that the run does not have before it starts.
        """
        return None


class GroupConfig(PartConfig):
    """The base for parts that see all samples of a prompt."""

    min_group_size: ClassVar[int] = 1
    """The smallest group that the part works with: 2 where it compares the samples."""

    def needed_group_size(self) -> int:
        """`min_group_size`, unless a setting changes what the part does with a group of one."""
        return self.min_group_size


class RewardConfig(GroupConfig):
    """Kind `reward`."""

    needs_label: ClassVar[bool] = False
    """The reward compares with the prompt's label. rlcore refuses a prompt without one before the run
    starts.
    """

    value_range: ClassVar[tuple[float, float] | None] = None
    """Bounds of its scores and their parts, included. A value outside counts as a failure of the reward."""


class FilterConfig(GroupConfig):
    """Kind `filter`."""

    @property
    def lowers_rewards(self) -> bool:
        """Whether it takes something off a reward, which may become negative."""
        return False


class ProducerConfig(PartConfig):
    """Kind `producer`."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.ROLLOUTS})
    """The kinds of training (`rlcore.TrainsOn`) that it makes rollouts for."""

    asynchronous: ClassVar[bool | None] = None
    """True: for asynchronous runs only; False: for synchronous runs only; None: for both."""

    makes_batches: ClassVar[bool] = False
    """Its rollouts are whole batches (`Rollout.batch`). Its runs evaluate nothing, and start no engine, no
    reward worker and no frozen model.
    """

    @classmethod
    def suits(cls, trains_on: TrainsOn, asynchronous: bool) -> bool:
        """Whether it makes the rollouts of such a run."""
        return trains_on in cls.trains_on and cls.asynchronous in (None, asynchronous)

    def check_prompts(self, prompts: Sequence[Prompt], tokenizer: Tokenizer, run: RunConfig) -> None:
        """Raises `DataError` for a prompt that it cannot make a rollout of.

        rlcore asks before the run starts, for each set of prompts; a set may be large.
        """

    def last_step(self) -> int | None:
        """The last step that it has a rollout for, which ends the run; None: there is always another one.

        rlcore asks before the run starts. At least 1: raises `DataError` where it can make no rollout at all.
        """
        return None


class DataConfig(PartConfig):
    """Kind `source`, for the source behind `--data` (a `rlcore.Source` that is no task)."""

    path: str | tuple[str, ...] = Field(description="what --data says; several where it is repeated")

    shared: ClassVar[frozenset[str]] = frozenset()
    """Settings that hold for the files of `--eval` too, unless these say otherwise."""

    @classmethod
    def path_complaint(cls, paths: Sequence[str]) -> str | None:
        """Why the source cannot read `paths`, as a sentence after `--data: `; None: nothing is wrong.

        rlcore asks when it reads the flags. So a file may be looked for, and a server may not.
        """
        return None


class BatchConfig(GroupConfig):
    """The base for parts that work on the train batch."""

    needs: ClassVar[frozenset[Input]] = frozenset()
    """The columns (`rlcore.Input`) that it reads, of those that cost a forward pass or a generation. rlcore
    makes no others.
    """

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.ROLLOUTS})
    """The kinds of training (`rlcore.TrainsOn`) that it can be a part of."""


class AdvantageConfig(BatchConfig):
    """Kind `advantage`."""

    idle: ClassVar[bool] = False
    """Its advantages are all 0, so nothing is learned from rewards."""


class LossConfig(BatchConfig):
    """Kind `loss`."""

    reads_advantages: ClassVar[bool] = True
    """Whether it uses the advantages, and through them the rewards."""

    @property
    def top_tokens(self) -> TopTokens | None:
        """The likeliest tokens of each position that it compares between two models; None: it compares
        none.
        """
        return None


class ValueLossConfig(BatchConfig):
    """Kind `value_loss`."""


class CorrectionConfig(BatchConfig):
    """Kind `correction`."""

    @property
    def weighs(self) -> bool:
        """True: it weighs tokens by a ratio of two policies, and rlcore refuses a second such correction.
        False: it only leaves tokens out.
        """
        return False


class ClusterConfig(PartConfig):
    """Kind `cluster`."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version the run folder records."""


class PassingConfig(Config):
    """The base for parts that hand the settings of a library on, under the library's own names.

    A user sets them by `--<table>.<field>`, or in the table `[<table>]` of a file.
    """

    table: ClassVar[str] = ""
    """The name of that table; empty: the part hands nothing on."""

    fields_of: ClassVar[str] = ""
    """Whose fields they are, for the help: `any field of …`."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """What other frameworks call a field: `{"tp": "tensor_model_parallel_size"}`."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules to import ahead of time, in the process that becomes a rank of the trainer or the engine's
    server.
    """


class EngineConfig(PassingConfig):
    """Kind `engine`: what core reads of `--engine.*`."""

    routers: ClassVar[Mapping[str, str]] = {}
    """How a router may divide requests among its servers, the values of `--router`, each with the class of
    that router, a `rlcore.Router`; empty: it has none.
    """

    dtype: Literal["fp32", "bf16"] | None = Field(
        default=None, description="dtype of the engine's weights; none: the run's"
    )
    publish: str = Field(default="disk", description="how new weights reach the server")
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port of the first engine, the others take the next ones; none: free ones",
    )
    start_limit_s: float = Field(
        default=120.0, gt=0, description="seconds that the server may take until it answers"
    )
    stop_grace_s: float = Field(
        default=5.0, ge=0, description="seconds from SIGTERM to SIGKILL at its end; 0: no SIGTERM reaches it"
    )

    def complaints(self, run: RunConfig, fields: Mapping[str, Any]) -> Iterable[str]:
        """Like `PartConfig.complaints`. `fields`: those of the engine's table, as given."""
        return ()


class TrainerConfig(PassingConfig):
    """Kind `trainer`.

    Below, `fields` are those of its table as the user gave them: texts, where they are flags.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version can change a run's numbers. The run folder records them."""

    layout_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that only divide the work among ranks. A resumed run may change them."""

    needs_bridge: ClassVar[bool] = True
    """True: it trains models that have a bridge. False: it trains any model that transformers loads."""

    planner: ClassVar[str] = ""
    """`package.module:Class` of the planner that `rlcore plan` asks (`rlcore_toolkit.Planner`); empty: it has
    none.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    """What it can beyond the policy on one rank. rlcore refuses a run that asks for anything else."""

    def field_names(self) -> Collection[str]:
        """Every field that its library is known to have, without an import of it; empty: not known so."""
        return ()

    def model_ranks(self, fields: Mapping[str, Any]) -> int:
        """Ranks that hold one copy of the model together. Raises `ConfigError`."""
        return 1

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """Like `PartConfig.complaints`. `roles`: the run's models beside the policy"""
        return ()

    def left_out(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> str | None:
        """A sentence about the parts of this model that the trainer leaves out; None: it trains all."""
        return None

    def beside_complaints(
        self, role: str, policy: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterable[str]:
        """Why one worker cannot hold the policy with the fields `policy` and a role that changes them by
        `own`.
        """
        return ()

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        """Why the trainer cannot train the model of this config.json under these fields."""
        return ()
