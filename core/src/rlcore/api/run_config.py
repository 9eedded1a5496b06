"""The run's own settings, in groups. A flag has the name of its field, whatever its group."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator

from rlcore.api.config import NAME, Config, fields_of, nested


def _whole_steps(steps: int | float | None) -> int | float | None:
    """A number of steps, or a share of all of them; None stays. ValueError."""
    if steps is None or steps < 1:
        return steps
    if steps != int(steps):
        raise ValueError("expected whole steps, or a share below 1")
    return int(steps)


class SamplingOptions(Config):
    """How responses are sampled."""

    max_prompt_tokens: int = Field(1024, ge=1, description="a longer prompt is refused")
    max_response_tokens: int = Field(256, ge=1, description="a longer response is truncated")
    temperature: float = Field(1.0, gt=0, le=100, description="temperature of sampling, and in the trainer")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of tokens of this probability")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0, lt=1, description="drop tokens below this share of the most probable one")
    stop: tuple[str, ...] = Field((), description="strings that end a response")
    stop_token_ids: tuple[int, ...] = Field(
        (), description="tokens that end a response, beside the model's own"
    )

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

    prompts_per_step: int = Field(32, ge=1, description="prompts (groups) in a rollout batch")
    group_size: int = Field(8, ge=1, description="samples generated for each prompt")
    max_attempts: int = Field(3, ge=1, description="how often a prompt is tried, if its generator crashes")
    max_refills: int = Field(4, ge=0, description="rounds of new prompts in place of dropped groups")
    curriculum: bool = Field(False, description="draw a prompt less often if it is always or never solved")
    curriculum_floor: float = Field(
        0.1, gt=0, le=1, description="chance to draw a prompt that is always or never solved"
    )
    curriculum_solved_at: float = Field(
        1.0, description="reward from which on the curriculum counts a prompt as solved"
    )
    shuffle: bool = Field(
        True, description="draw the prompts of each epoch in a new order, not in that of the source"
    )
    metadata_columns: tuple[str, ...] = Field(
        (), description="numbers of each prompt's metadata that become columns of the batch, for plugins"
    )


class OptimizerOptions(Config):
    """The steps of the policy's optimizer."""

    minibatches: int = Field(1, ge=1, description="optimizer steps for each rollout batch")
    tokens_per_rank: int = Field(8192, ge=1, description="tokens in one micro-batch of a rank")
    balance: Literal["tokens", "flops"] = Field(
        "tokens",
        description="what is divided evenly over ranks and micro-batches; flops: the work, so that long "
        "samples count more",
    )
    lr: float = Field(1e-6, ge=0, le=10, description="peak learning rate")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate goes on after the warm-up"
    )
    min_lr: float = Field(0.0, ge=0, description="learning rate at the end of the schedule")
    warmup_steps: int | float = Field(
        0, ge=0, description="steps of linear warm-up; below 1: the share of all steps"
    )
    weight_decay: float = Field(0.0, ge=0, le=10, description="AdamW weight decay")
    clip_grad: float = Field(1.0, ge=0, description="largest gradient norm; 0 does not clip")

    _whole_warmup = field_validator("warmup_steps")(_whole_steps)

    def warmup_of(self, steps: int) -> int:
        """Steps of warm-up in a run of `steps`."""
        return int(self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * steps)


class LossOptions(Config):
    """What core adds to the loss, and how it reads log-probs."""

    entropy_coef: float = Field(0.0, ge=0, description="coefficient of the entropy bonus")
    normalizer: Literal["per_rollout", "per_prompt", "per_token", "constant"] = Field(
        "per_rollout",
        description="denominator of the loss: mean over rollouts, over prompts, over tokens, or a constant",
    )
    old_log_probs: Literal["trainer", "rollout"] = Field(
        "trainer", description="old log-probs of the policy ratio: the trainer's, or the engine's (rollout)"
    )
    whiten_advantages: bool = Field(
        False, description="advantages of a rollout batch get mean 0 and variance 1 over its tokens"
    )
    replay_routing: bool = Field(
        False, description="the trainer sends each token to the experts that the engine chose for it"
    )
    max_kl_engine: float = Field(
        1e-4,
        gt=0,
        description="largest gap of trainer's and engine's log-probs on the first step, in fp32 (FP8 engines "
        "have another bound)",
    )


class KlOptions(Config):
    """The KL to the reference, and the reference."""

    kl_coef: float = Field(0.0, ge=0, description="coefficient of the KL to the reference; 0: no KL term")
    kl_estimator: Literal["k1", "k2", "k3", "low_var_kl"] = Field(
        "k3", description="estimate of the KL from the sampled token"
    )
    kl_place: Literal["loss", "reward"] = Field("loss", description="what the KL term becomes a part of")
    kl_unbiased: bool = Field(
        False, description="multiply the KL in the loss by the ratio of the new to the old policy"
    )
    reference_model: str = Field("", description="directory of the reference; empty: the run's model")
    reference_ranks: int = Field(
        0, ge=0, description="train workers of the reference alone; 0: the policy's workers hold it"
    )
    reference_refresh_every: int = Field(
        0, ge=0, description="steps between copies of the policy into the reference; 0: never"
    )
    reference_placement: Literal["resident", "swapped"] = Field(
        "resident",
        description="where the reference is; resident: a model of its own; swapped: weights in host memory, "
        "which take the policy's place for each forward pass",
    )


class CriticOptions(Config):
    """The critic, where the algorithm has one."""

    critic_lr: float = Field(1e-5, ge=0, le=10, description="peak learning rate of the critic")
    critic_warmup_steps: int = Field(0, ge=0, description="first steps that train the critic alone")
    critic_ranks: int = Field(
        0, ge=0, description="train workers of the critic alone; 0: the policy's workers hold it"
    )
    critic_lr_schedule: Literal["constant", "linear", "cosine"] | None = Field(
        None, description="--lr-schedule of the critic; none: that of the policy"
    )
    critic_min_lr: float | None = Field(
        None, ge=0, description="--min-lr of the critic; none: that of the policy"
    )
    critic_lr_warmup_steps: int | float | None = Field(
        None, ge=0, description="--warmup-steps of the critic; none: those of the policy"
    )
    critic_weight_decay: float | None = Field(
        None, ge=0, le=10, description="--weight-decay of the critic; none: that of the policy"
    )
    critic_clip_grad: float | None = Field(
        None, ge=0, description="--clip-grad of the critic; none: that of the policy"
    )
    critic_model: str = Field(
        "", description="directory of the critic's first weights; empty: the run's model, with a new head"
    )

    _whole_warmup = field_validator("critic_lr_warmup_steps")(_whole_steps)

    def optimizer(self, policy: OptimizerOptions) -> OptimizerOptions:
        """The critic's: `policy`, and what it has of its own in its place."""
        own = {
            "lr_schedule": self.critic_lr_schedule,
            "min_lr": self.critic_min_lr,
            "warmup_steps": self.critic_lr_warmup_steps,
            "weight_decay": self.critic_weight_decay,
            "clip_grad": self.critic_clip_grad,
        }
        own_values = {name: value for name, value in own.items() if value is not None}
        return policy.model_copy(update={"lr": self.critic_lr, **own_values})


class TeacherOptions(Config):
    """The teacher of a distillation."""

    teacher_model: str = Field(
        "", description="the teacher: a model directory, or RUN/checkpoints/N of another run"
    )
    teacher_ranks: int = Field(
        0, ge=0, description="train workers of --teacher-model alone; 0: the policy's workers hold it"
    )
    teacher_url: tuple[str, ...] = Field(
        (),
        description="the teacher: URL of an engine that scores tokens, or frozen:NAME of --frozen; for "
        "several teachers, NAME=URL each",
    )
    distill_coef: float = Field(
        0.0, ge=0, description="coefficient of the KL to the teacher, which is subtracted from the advantages"
    )

    @field_validator("teacher_url", mode="before")
    @classmethod
    def _one_or_several(cls, urls: Any) -> Any:
        if isinstance(urls, str):
            return (urls,) if urls else ()
        return tuple(urls) if isinstance(urls, list) else urls

    @property
    def teachers(self) -> tuple[tuple[str, str], ...]:
        """Name and URL of each of `teacher_url`; a name is empty where there is none."""
        parts = [(entry, *entry.partition("=")) for entry in self.teacher_url]
        return tuple((name, url) if NAME.fullmatch(name) else ("", entry) for entry, name, _, url in parts)


class AsynchronyOptions(Config):
    """How far generation may run ahead of training."""

    max_staleness: int = Field(0, ge=0, description="weight versions that generation may run ahead; 0: none")
    on_publish: Literal["wait", "retract", "in_place", "abort"] = Field(
        "retract",
        description="what happens to running requests when weights change; wait: they end first; retract: "
        "they go on, with caches computed anew; in_place: they go on, with the old caches; abort: they are "
        "cut, and new requests go on from there",
    )
    over_sample: float = Field(
        1.0, ge=1, le=16, description="with --partial-rollouts: groups started for each one that a step needs"
    )
    partial_rollouts: bool = Field(
        False, description="pause generation while the trainer works, and finish the samples later"
    )
    mask_stale_tokens: bool = Field(
        False,
        description="leave tokens older than --max-staleness out of the loss; else their group is made anew",
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

    eval_first: bool = Field(True, description="evaluate before the first step")
    eval_every: int = Field(10, ge=0, description="steps between evaluations; 0: only at start and end")
    eval_engines: int = Field(
        0, ge=0, le=1024, description="engines that only evaluate; 0: the run's own do, and training waits"
    )
    eval_prompts: int = Field(256, ge=1, description="at most this many prompts of each held-out set")


class CheckpointOptions(Config):
    """What is kept of a run."""

    save_every: int = Field(0, ge=0, description="steps between checkpoints; 0: only at the end")
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints to keep")
    save_rollouts_every: int = Field(
        0, ge=0, description="every so many steps the rollout is written to samples/ and rollouts/; 0: never"
    )


class DebugOptions(Config):
    """Half of a run, and a look inside."""

    only: Literal["rollout", "train"] | None = Field(
        None,
        description="half of a run. rollout: generate, with the model's first weights; train: on rollouts "
        "that the producer reads; none: both",
    )
    save_batches_every: int = Field(
        0, ge=0, description="every so many steps each train rank writes its batch to batches/; 0: never"
    )
    profile_steps: str = Field(
        "", description="steps whose training is profiled into profile/: N, or FIRST-LAST; empty: none"
    )
    trace_limit: int = Field(
        64, ge=0, description="MiB of RUN/trace.json, which says what took how long; 0: it is not written"
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

    engines: int = Field(1, ge=1, le=1024, description="engines to start")
    engine_group: tuple[str, ...] = Field(
        (),
        description="NAME=N: N engines with settings of their own, --engine-group.NAME.FIELD; in place of "
        "--engines",
    )
    engine_url: tuple[str, ...] = Field(
        (),
        description="URL of an engine that runs already; its token is in RLCORE_ENGINE_TOKEN",
    )
    engine_weights_dir: str = Field(
        "",
        description="where the engines of --engine-url find new weights; empty: in the run's folder",
    )
    frozen: tuple[str, ...] = Field(
        (),
        description="NAME=MODEL: a model, by directory or hub id, that the run serves and never trains; "
        "frozen:NAME stands for its URL",
    )
    check_weights_every: int = Field(
        0,
        ge=0,
        description="publications between checks of an engine's weights: it loads the same ones from disk "
        "too, and the checksums must be equal; 0: never",
    )
    router: str | None = Field(
        None, description="policy of a router before the engines, as cache_aware; none: groups take turns"
    )
    engine_concurrency: int = Field(512, ge=1, description="requests in flight for each engine")
    engine_timeout: float = Field(600, gt=0, description="seconds an engine may take for one request")
    engine_replacements: int = Field(
        3, ge=0, description="how often, in the whole run, a new server replaces an engine that died"
    )
    engine_health_every: float = Field(10, gt=0, description="seconds between health checks of an engine")
    engine_health_limit: float = Field(
        60, gt=0, description="seconds an engine may take for a health check before it counts as dead"
    )
    rollout_workers: int = Field(
        0,
        ge=0,
        le=1024,
        description="processes that run generators: chat templates, tools, environments, agents; 0: the "
        "command's own process does",
    )


class RewardOptions(Config):
    """The processes that compute rewards."""

    reward_workers: int = Field(1, ge=1, le=1024, description="processes that compute rewards")
    reward_timeout: float = Field(10, gt=0, description="seconds a reward may take for one group")
    reward_memory_gib: float = Field(
        16, gt=0, description="memory (GiB) of each process that computes rewards"
    )
    rank_reward: tuple[str, ...] = Field(
        (), description="rewards that count by their rank within the group (0 to 1), not by their value"
    )


class LimitOptions(Config):
    """How long the run waits for what it is made of."""

    step_timeout: float = Field(3600, gt=0, description="seconds that the train workers may take for a step")
    save_timeout: float = Field(
        1800, gt=0, description="seconds that the train workers may take to write weights or a checkpoint"
    )
    publish_timeout: float = Field(
        1800, gt=0, description="seconds that the engines may take to load new weights"
    )
    generator_timeout: float = Field(
        3600, gt=0, description="seconds that a generator may take for one sample, or its group"
    )
    worker_health_limit: float = Field(
        60,
        gt=0,
        description="seconds without a sign of life after which a train or rollout worker counts as dead",
    )


class RunConfig(Config):
    """Everything that is not a setting of one component."""

    steps: int = Field(100, ge=1, description="rollout batches to train on")
    epochs: int = Field(
        0, ge=0, description="passes over the prompts, in place of --steps; 0: --steps counts"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of everything that is random")
    dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="dtype of the trainer's parameters and of the engine; auto: fp32 without a GPU"
    )
    weights: str = Field(
        "", description="checkpoint made by `rlcore convert`, read in place of the model's safetensors"
    )
    ranks: int = Field(1, ge=1, description="train workers")
    threads: int = Field(
        0, ge=0, description="CPU threads of each train worker and engine; 0: rlcore chooses"
    )
    placement: Literal["colocate", "split"] = Field(
        "colocate", description="colocate: engines share the trainer's devices; split: they have their own"
    )
    sleep: Literal["none", "optimizer", "all"] = Field(
        "none",
        description="what the trainer moves off shared devices while engines generate; optimizer: its state "
        "and the gradients; all: the weights too",
    )
    sampling: SamplingOptions = SamplingOptions()
    data: DataOptions = DataOptions()
    optimizer: OptimizerOptions = OptimizerOptions()
    loss: LossOptions = LossOptions()
    kl: KlOptions = KlOptions()
    critic: CriticOptions = CriticOptions()
    teacher: TeacherOptions = TeacherOptions()
    asynchrony: AsynchronyOptions = AsynchronyOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoints: CheckpointOptions = CheckpointOptions()
    debug: DebugOptions = DebugOptions()
    serving: ServingOptions = ServingOptions()
    rewards: RewardOptions = RewardOptions()
    limits: LimitOptions = LimitOptions()

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From settings by their names, whatever their groups: `RunConfig.of(lr=1e-6, steps=3)`."""
        return cls.model_validate(nested(cls, settings))

    def but(self, **settings: Any) -> Self:
        """The same with other values of `settings`, named as in `of`."""
        return type(self).of(**{**self.values(), **settings})

    def values(self) -> dict[str, Any]:
        """Name → value of every setting."""
        flat: dict[str, Any] = {}
        for name, value in self:
            flat |= dict(value) if isinstance(value, Config) else {name: value}
        return flat

    def is_default(self, name: str) -> bool:
        """Whether setting `name` has its default."""
        return bool(self.values()[name] == fields_of(type(self))[name].default)
