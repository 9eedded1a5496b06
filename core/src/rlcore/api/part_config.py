"""What the config of a part tells core about it: one base for each kind that core asks anything of.

A config class derives from the base of its kind; the kinds without one here (generator, model, source,
tracker) derive from `rlcore.Config`. A class variable holds however the part is set; what depends
on settings is a method or a property, which a config overrides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlcore.api.config import Config
from rlcore.api.inputs import Input, TopTokens, TrainsOn
from rlcore.api.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """A part of a run, as another part's `complaints` sees it. `kind`: a `rlcore.Kind`."""

    kind: str
    name: str
    config: Config


class PartConfig(Config):
    """Of any part that a run may be made of."""

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """What of the run does not fit the part: a sentence each, which names the flag, what was found and

        what to change. rlcore refuses the run with the first one. `name`: of the part. `neighbors`: what
        works on the run's batches and groups: losses, advantages, corrections, rewards, filters.
        """
        return ()


class GroupConfig(PartConfig):
    """Of what sees the samples of a prompt together."""

    min_group_size: ClassVar[int] = 1
    """The smallest group that the part works with; 2 where it compares siblings."""

    def needed_group_size(self) -> int:
        """`min_group_size`, unless a setting changes what the part does with a group of one."""
        return self.min_group_size


class RewardConfig(GroupConfig):
    """Kind `reward`."""

    needs_label: ClassVar[bool] = False
    """It compares with the prompt's label, so that a prompt without one is refused before the run starts."""

    value_range: ClassVar[tuple[float, float] | None] = None
    """The least and the greatest value of its scores and their parts; another one is a failure, no score."""


class FilterConfig(GroupConfig):
    """Kind `filter`."""

    @property
    def lowers_rewards(self) -> bool:
        """It takes something from a reward, which may get below 0."""
        return False


class ProducerConfig(PartConfig):
    """Kind `producer`."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.ROLLOUTS})
    """The runs that it makes rollouts for."""

    asynchronous: ClassVar[bool | None] = None
    """Whether it is for asynchronous runs alone, or for synchronous ones alone; None: for both."""

    @classmethod
    def suits(cls, trains_on: TrainsOn, asynchronous: bool) -> bool:
        """Whether it makes the rollouts of such a run."""
        return trains_on in cls.trains_on and cls.asynchronous in (None, asynchronous)


class BatchConfig(GroupConfig):
    """Of what works on the train batch."""

    needs: ClassVar[frozenset[Input]] = frozenset()
    """The columns that the part reads and that cost a forward pass or a generation."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.ROLLOUTS})
    """The runs that it can be a part of."""


class AdvantageConfig(BatchConfig):
    """Kind `advantage`."""

    idle: ClassVar[bool] = False
    """Its advantages are all 0: nothing is learned by the rewards."""


class LossConfig(BatchConfig):
    """Kind `loss`."""

    reads_advantages: ClassVar[bool] = True
    """It learns by the advantages, and through them by the rewards."""

    @property
    def top_tokens(self) -> TopTokens | None:
        """The likeliest tokens of each position, where it compares them with the teacher's."""
        return None


class ValueLossConfig(BatchConfig):
    """Kind `value_loss`."""


class CorrectionConfig(BatchConfig):
    """Kind `correction`."""

    @property
    def weighs(self) -> bool:
        """Its weights stand for a ratio of two policies; else they leave tokens out."""
        return False


class PassingConfig(Config):
    """Of a part whose library has settings of its own, which pass through by their own names.

    `--<table>.<field>` sets them, as does the table `[<table>]` of a file.
    """

    table: ClassVar[str] = ""
    """What the user calls the library; empty: it takes no such fields."""

    fields_of: ClassVar[str] = ""
    """Whose fields they are, for the help: `any field of …`."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """What other frameworks call one of them: `{"tp": "tensor_model_parallel_size"}`."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that a process may import before it becomes a rank of the trainer, or the engine's server."""


class EngineConfig(PassingConfig):
    """Kind `engine`: what core reads of `--engine.*`."""

    dtype: Literal["fp32", "bf16"] | None = Field(
        default=None, description="Precision of the engine's weights; the run's where not given."
    )
    publish: str = Field(default="disk", description="How new weights reach the server.")
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the first engine, the others take the next ones; free ones where not given.",
    )
    start_limit_s: float = Field(
        default=120.0, gt=0, description="Seconds that the server may take until it answers."
    )
    stop_grace_s: float = Field(
        default=5.0, ge=0, description="Seconds that the server may take to end before it is killed."
    )

    def complaints(self, run: RunConfig, fields: Mapping[str, Any]) -> Iterable[str]:
        """What of the run does not fit the engine, a sentence each. `fields`: those of `table`, as given."""
        return ()


class TrainerConfig(PassingConfig):
    """Kind `trainer`. `fields` below: those of `table` as the user gave them, texts where they are flags."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version may change a run's numbers."""

    layout_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that only divide the work: a resumed run may change them."""

    needs_bridge: ClassVar[bool] = True
    """It trains the models for which a plugin has a bridge; else any that transformers loads."""

    sleeps: ClassVar[bool] = False
    """Its models can leave the device while engines generate (`rlcore.Sleeper`)."""

    def model_ranks(self, fields: Mapping[str, Any]) -> int:
        """Ranks that hold one copy of the model together. ConfigError."""
        return 1

    def stage_layers(self, fields: Mapping[str, Any], layers: int) -> Sequence[Sequence[int]]:
        """Of each pipeline stage, how many of the model's `layers` each of its chunks has. ConfigError."""
        return [[layers]]

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """What of the run does not fit the trainer, a sentence each. `roles`: of `critic`, `reference` and

        `teacher`, those that the run has.
        """
        return ()

    def beside_complaints(
        self, role: str, policy: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterable[str]:
        """What keeps a role with the fields `own` off the workers of the policy, which has those of `policy`.

        The fields that `own` lacks are the policy's.
        """
        return ()

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        """What does not fit the model of this config.json."""
        return ()
