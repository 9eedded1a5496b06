"""The run's own settings, in groups.

A flag has the name of its field, whatever its group. Only the fields of a `Table` have its name in front.
`plugins/setting_names.txt` lists the names, for whoever must know them without an import of this module.
"""

import zlib
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from rlcore.api.columns import REPLAYS, Input
from rlcore.api.config import Config, fields_of, flag_name, nested, values_of
from rlcore.api.lora import LoraOptions, NamedPolicy, PolicyTables
from rlcore.api.marks import COMMON, EVALUATION, PATH, RESUMABLE, SAMPLING, TRAINING, setting
from rlcore.api.optimizer import OptimizerOptions
from rlcore.api.roles import (
    CriticOptions,
    ReferenceOptions,
    RoleOptions,
    TeacherOptions,
)


class SamplingOptions(Config):
    """How responses are sampled."""

    max_prompt_tokens: int = setting(1024, "a longer prompt is refused", COMMON | EVALUATION, ge=1)
    max_response_tokens: int = setting(256, "a longer response is truncated", COMMON | EVALUATION, ge=1)
    temperature: float = setting(
        1.0, "temperature of sampling, and in the trainer", COMMON | SAMPLING, gt=0, le=100
    )
    top_p: float = setting(
        1.0, "keep the smallest set of tokens of this probability", COMMON | SAMPLING, gt=0, le=1
    )
    top_k: int = setting(0, "keep the k most probable tokens; 0 keeps all", SAMPLING, ge=0)
    min_p: float = setting(0.0, "drop tokens below this share of the most probable one", SAMPLING, ge=0, lt=1)
    stop: tuple[str, ...] = setting((), "strings that end a response", EVALUATION)
    stop_token_ids: tuple[int, ...] = setting((), "tokens that end a response beside the model's", EVALUATION)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("an empty text would end every response at once")
        return stop

    @field_validator("stop_token_ids")
    @classmethod
    def _no_negative_stop(cls, ids: tuple[int, ...]) -> tuple[int, ...]:
        if any(token < 0 for token in ids):
            raise ValueError("a token id is 0 or more")
        return ids

    @property
    def samples_whole(self) -> bool:
        """Whether the sampled distribution is the model's own, but for the temperature."""
        return self.top_p >= 1 and self.top_k <= 0 and self.min_p <= 0


class DataOptions(Config):
    """What a rollout batch is made of."""

    prompts_per_step: int = setting(32, "prompts (groups) in a rollout batch", COMMON, ge=1)
    group_size: int = setting(8, "samples generated for each prompt", COMMON, ge=1)
    max_attempts: int = setting(3, "how often a prompt is tried, if its generator crashes", SAMPLING, ge=1)
    max_refills: int = setting(4, "rounds of new prompts in place of dropped groups", SAMPLING, ge=0)
    curriculum: bool = setting(False, "draw a prompt less often if it is always or never solved", SAMPLING)
    curriculum_floor: float = setting(0.1, "chance of a prompt that is always or never solved", gt=0, le=1)
    curriculum_solved_at: float = setting(1.0, "reward from which the curriculum counts a prompt as solved")
    shuffle: bool = setting(True, "draw the prompts of each epoch in a new order, not in that of the source")
    metadata_columns: tuple[str, ...] = setting(
        (), "numbers of each prompt's metadata that become columns of the batch, for plugins"
    )


class LossOptions(Config):
    """What core adds to the loss, and how it reads log-probs."""

    entropy_coef: float = setting(0.0, "coefficient of the entropy bonus", COMMON, ge=0)
    normalizer: Literal["per_rollout", "per_prompt", "per_token", "constant"] = setting(
        "per_rollout",
        "denominator of the loss: mean over rollouts, over prompts, over tokens, or a constant",
        COMMON,
    )
    old_log_probs: Literal["trainer", "rollout"] = setting(
        "trainer", "old log-probs of the policy ratio: the trainer's, or the engine's (rollout)", SAMPLING
    )
    whiten_advantages: bool = setting(
        False, "advantages of a rollout batch get mean 0 and variance 1 over its tokens", SAMPLING
    )
    replay_routing: bool = setting(
        False, "the trainer sends each token to the experts that the engine chose for it", SAMPLING
    )
    replay_indexer: bool = setting(
        False, "sparse attention sees the keys that the engine's indexers chose for each token", SAMPLING
    )
    max_kl_engine: float = setting(
        1e-4,
        "largest gap of trainer's and engine's log-probs on the first step, in fp32 (FP8 engines "
        "have another bound)",
        gt=0,
    )

    @property
    def replayed(self) -> frozenset[str]:
        """The columns with the engine's choices that the trainer takes over."""
        return frozenset(column for name, column in REPLAYS.items() if getattr(self, name))


class KlOptions(Config):
    """The KL terms: to the reference, and to the teacher."""

    kl_coef: float = setting(
        0.0, "coefficient of the KL to the reference; 0: no KL term", COMMON | SAMPLING, ge=0
    )
    kl_estimator: Literal["k1", "k2", "k3", "low_var_kl"] = setting(
        "k3", "estimate of the KL from the sampled token"
    )
    kl_place: Literal["loss", "reward"] = setting("loss", "what the KL term becomes a part of", SAMPLING)
    kl_unbiased: bool = setting(
        False, "multiply the KL in the loss by the ratio of the new to the old policy", SAMPLING
    )
    distill_coef: float = setting(
        0.0, "coefficient of the KL to the teacher, which is subtracted from the advantages", SAMPLING, ge=0
    )

    @property
    def needs(self) -> frozenset[Input]:
        """The columns that the terms read."""
        return self.advantage_needs | ({Input.REFERENCE_LOG_PROBS} if self.kl_coef else set())

    @property
    def advantage_needs(self) -> frozenset[Input]:
        """The columns that the terms within rewards and advantages read."""
        inputs = frozenset[Input]()
        if self.kl_coef and self.kl_place == "reward":
            inputs |= {Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS}
        # No return has the teacher's term in it, but whoever makes advantages reads these.
        if self.distill_coef:
            inputs |= {Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS}
        return inputs


class AsynchronyOptions(Config):
    """How far generation may run ahead of training."""

    max_staleness: int = setting(
        0, "weight versions that generation may run ahead; 0: none", COMMON | SAMPLING, ge=0
    )
    on_publish: Literal["wait", "retract", "in_place", "abort"] = setting(
        "retract",
        "what happens to running requests when weights change; wait: they end first; retract: "
        "they go on, with caches computed anew; in_place: they go on, with the old caches; abort: they are "
        "cut, and new requests go on from there",
        SAMPLING,
    )
    over_sample: float = setting(
        1.0, "with --partial-rollouts: groups started for each one that a step needs", SAMPLING, ge=1, le=16
    )
    partial_rollouts: bool = setting(
        False, "pause generation while the trainer works, and finish the samples later", SAMPLING
    )
    mask_stale_tokens: bool = setting(
        False,
        "leave tokens older than --max-staleness out of the loss; else their group is made anew",
        SAMPLING,
    )

    @property
    def rests(self) -> bool:
        """Whether nothing is generated while the trainer works."""
        return self.partial_rollouts or not self.max_staleness

    @property
    def is_asynchronous(self) -> bool:
        """Whether a batch may hold tokens of older weights than those that it is trained with."""
        return self.max_staleness > 0 or self.partial_rollouts


class EvaluationOptions(Config):
    """When the policy is evaluated."""

    eval_first: bool = setting(True, "evaluate before the first step")
    eval_every: int = setting(10, "steps between evaluations; 0: at start and end", COMMON | RESUMABLE, ge=0)
    eval_engines: int = setting(
        0, "engines that only evaluate; 0: the run's own do, and training waits", ge=0, le=1024
    )
    eval_prompts: int = setting(256, "at most this many prompts of each held-out set", COMMON, ge=1)


class CheckpointOptions(Config):
    """What is kept of a run."""

    save_every: int = setting(
        0, "steps between checkpoints; 0: only at the end", COMMON | TRAINING | RESUMABLE, ge=0
    )
    keep_checkpoints: int = setting(2, "newest checkpoints to keep", COMMON | RESUMABLE, ge=1)
    save_rollouts_every: int = setting(
        0,
        "every so many steps the rollout is written to samples/ and rollouts/; 0: never",
        COMMON | SAMPLING | RESUMABLE,
        ge=0,
    )


class DebugOptions(Config):
    """Half of a run, and a look inside."""

    only: Literal["rollout", "train"] | None = setting(
        None,
        "half of a run. rollout: generate, with the model's first weights; train: on rollouts "
        "that the producer reads; none: both",
    )
    save_batches_every: int = setting(
        0, "every so many steps each train rank writes its batch to batches/; 0: never", TRAINING, ge=0
    )
    profile_steps: str = setting(
        "", "steps whose training is profiled into profile/: N, or FIRST-LAST; empty: none"
    )
    trace_limit: int = setting(
        64, "MiB of RUN/trace.json, which says what took how long; 0: it is not written", RESUMABLE, ge=0
    )

    @field_validator("profile_steps")
    @classmethod
    def _a_range(cls, text: str) -> str:
        first, _, last = text.partition("-")
        ends = [first, last] if last else [first]
        if text and not (all(map(str.isdecimal, ends)) and 1 <= int(first) <= int(ends[-1])):
            raise ValueError("expected a step, or FIRST-LAST")
        return text

    @property
    def profiled(self) -> tuple[int, int] | None:
        """The first and the last step of `profile_steps`."""
        first, _, last = self.profile_steps.partition("-")
        return (int(first), int(last or first)) if first else None


class ServingOptions(Config):
    """The engines of a run, the frozen models beside them, and the processes that ask the engines."""

    engines: int | None = setting(
        None, "engines to start; none: as many as share the workers' GPUs", COMMON | EVALUATION, ge=1, le=1024
    )
    engine_group: tuple[str, ...] = setting(
        (), "NAME=N: N engines with settings of their own, --engine-group.NAME.FIELD; in place of --engines"
    )
    engine_url: tuple[str, ...] = setting(
        (), "URL of an engine that runs already; its token is in RLCORE_ENGINE_TOKEN", COMMON
    )
    engine_weights_dir: str = setting(
        "", "where the engines of --engine-url find new weights; empty: in the run's folder", PATH
    )
    frozen: tuple[str, ...] = setting(
        (),
        "NAME=MODEL: a model, by directory or hub id, that the run serves and never trains; "
        "frozen:NAME stands for its URL",
        EVALUATION,
    )
    check_weights_every: int = setting(
        0,
        "publications between checks of an engine's weights: it loads the same ones from disk "
        "too, and the checksums must be equal; 0: never",
        ge=0,
    )
    router: str | None = setting(
        None, "policy of a router before the engines, as cache_aware; none: groups take turns"
    )
    engine_concurrency: int = setting(512, "requests in flight for each engine", EVALUATION | RESUMABLE, ge=1)
    engine_timeout: float = setting(
        600, "seconds an engine may take for one request", EVALUATION | RESUMABLE, gt=0
    )
    engine_replacements: int = setting(
        3, "how often, in the whole run, a new server replaces an engine that died", ge=0
    )
    engine_health_every: float = setting(10, "seconds between health checks of an engine", gt=0)
    engine_health_limit: float = setting(
        60, "seconds an engine may take for a health check before it counts as dead", gt=0
    )
    rollout_workers: int = setting(
        0,
        "processes that run generators: chat templates, tools, environments, agents; 0: the "
        "command's own process does",
        EVALUATION | RESUMABLE,
        ge=0,
        le=1024,
    )


class RewardOptions(Config):
    """The processes that compute rewards."""

    reward_workers: int = setting(1, "processes that compute rewards", EVALUATION | RESUMABLE, ge=1, le=1024)
    reward_timeout: float = setting(10, "seconds a reward may take for a group", EVALUATION | RESUMABLE, gt=0)
    reward_memory_gib: float = setting(
        16, "memory (GiB) of each process that computes rewards", EVALUATION | RESUMABLE, gt=0
    )
    rank_reward: tuple[str, ...] = setting(
        (), "rewards that count by their rank within the group (0 to 1), not by their value"
    )


class LimitOptions(Config):
    """How long the run waits for what it is made of."""

    step_timeout: float = setting(3600, "seconds that the train workers may take for a step", gt=0)
    save_timeout: float = setting(
        1800, "seconds that the train workers may take to write weights or a checkpoint", gt=0
    )
    publish_timeout: float = setting(1800, "seconds that the engines may take to load new weights", gt=0)
    generator_timeout: float = setting(
        3600, "seconds that a generator may take for one sample, or its group", gt=0
    )
    worker_health_limit: float = setting(
        60, "seconds without a sign of life after which a train or rollout worker counts as dead", gt=0
    )


class RunConfig(Config):
    """Everything that is not a setting of one component."""

    steps: int = setting(100, "rollout batches to train on", COMMON | RESUMABLE, ge=1)
    epochs: int = setting(
        0, "passes over the prompts, in place of --steps; 0: --steps counts", COMMON | RESUMABLE, ge=0
    )
    seed: int = setting(0, "seed of everything that is random", COMMON | EVALUATION, ge=0, lt=2**31)
    dtype: Literal["auto", "fp32", "bf16"] = setting(
        "auto",
        "dtype of the trainer's parameters and of the engine; auto: fp32 without a GPU",
        COMMON | EVALUATION,
    )
    weights: str = setting(
        "", "checkpoint of `rlcore convert`, read in place of the model's safetensors", PATH
    )
    ranks: int = setting(1, "train workers", COMMON | RESUMABLE, ge=1)
    threads: int = setting(
        0, "CPU threads of each train worker and engine; 0: rlcore chooses", EVALUATION | RESUMABLE, ge=0
    )
    placement: Literal["colocate", "split"] = setting(
        "colocate",
        "colocate: engines share the trainer's devices; split: they have their own",
        COMMON | RESUMABLE,
    )
    sleep: Literal["none", "optimizer", "all"] = setting(
        "none",
        "what the trainer moves off shared devices while engines generate; optimizer: its state "
        "and the gradients; all: the weights too",
        COMMON,
    )
    sampling: SamplingOptions = Field(default_factory=SamplingOptions)
    data: DataOptions = Field(default_factory=DataOptions)
    optimizer: OptimizerOptions = Field(default_factory=OptimizerOptions)
    loss: LossOptions = Field(default_factory=LossOptions)
    kl: KlOptions = Field(default_factory=KlOptions)
    lora: LoraOptions = Field(default_factory=LoraOptions)
    policy_table: ClassVar[str] = "lora"
    """The table whose settings each further policy has for itself."""
    policy: PolicyTables = Field(default_factory=PolicyTables)
    critic: CriticOptions = Field(default_factory=CriticOptions)
    reference: ReferenceOptions = Field(default_factory=ReferenceOptions)
    teacher: TeacherOptions = Field(default_factory=TeacherOptions)
    asynchrony: AsynchronyOptions = Field(default_factory=AsynchronyOptions)
    evaluation: EvaluationOptions = Field(default_factory=EvaluationOptions)
    checkpoints: CheckpointOptions = Field(default_factory=CheckpointOptions)
    debug: DebugOptions = Field(default_factory=DebugOptions)
    serving: ServingOptions = Field(default_factory=ServingOptions)
    rewards: RewardOptions = Field(default_factory=RewardOptions)
    limits: LimitOptions = Field(default_factory=LimitOptions)

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From settings by their names: `RunConfig.of(steps=3, lr=1e-6, **{"critic.lr": 1e-5})`."""
        return cls.model_validate(nested(cls, settings))

    def but(self, **settings: Any) -> Self:
        """The same with other values of `settings`, named as in `of`."""
        return type(self).of(**{**self.values(), **settings})

    def values(self) -> dict[str, Any]:
        """Name → value of every setting."""
        return values_of(self)

    @property
    def roles(self) -> dict[str, RoleOptions]:
        """Role → its table, of every role that a run may have beside the policy."""
        return {name: table for name, table in self if isinstance(table, RoleOptions)}

    @property
    def policies(self) -> dict[str, NamedPolicy]:
        """Name → table of each policy beside the run's own, sorted: its place is its number in a batch."""
        return dict(sorted((self.policy.__pydantic_extra__ or {}).items()))

    @property
    def has_overlay(self) -> bool:
        """Whether the policy trains something over its model's own weights, which stay as they are."""
        return bool(self.lora.rank or self.lora.source)

    def of_policy(self, name: str) -> Self:
        """The settings of the further policy `name` in the places of the run's own."""
        seed = (self.seed + zlib.crc32(name.encode())) % 2**31  # else all begin with the same values
        return self.but(**{**self.policies[name].settings, "seed": seed})

    @property
    def policy_steps(self) -> int:
        """The steps that train the policy: those after the ones that train the critic alone."""
        return self.steps - self.critic.only_steps

    @property
    def scorers(self) -> dict[str, str]:
        """Name → URL of each engine that scores what the policy samples; that of a single one is empty."""
        return self.teacher.urls

    @property
    def scoring_urls(self) -> dict[str, str]:
        """Flag → URL of each engine that gives the teacher's log-probs."""
        return {
            flag_name(f"teacher.{name}.url" if name else "teacher.url"): url
            for name, url in self.scorers.items()
        }

    def is_default(self, name: str) -> bool:
        """Whether setting `name` has its default."""
        return bool(self.values()[name] == fields_of(type(self))[name].default)


_TABLES = RoleOptions.__subclasses__()
ROLES = tuple(name for name, table in RunConfig.__annotations__.items() if table in _TABLES)
"""The roles beside the policy: the names of their tables."""
