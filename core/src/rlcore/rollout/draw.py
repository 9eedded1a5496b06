"""The samples of a draw, the weights that they may come from, and the outcome."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from rlcore.api.errors import PluginError, RlcoreError, StaleWeightsError
from rlcore.api.types import RECORDED, GenerationStatus, Group, Prompt, Sample

CRASHED = "crashed"
"""The reason of a group whose generator raised, or returned something invalid."""
UNFIT = "unfit_prompt"
"""The reason of a group whose prompt is too long, or cannot be formatted."""
UNUSABLE = frozenset({GenerationStatus.ABORTED, GenerationStatus.FAILED})
"""A sample of such a status is generated once more. If that fails too, the whole group is dropped."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A prompt to generate for. `attempt`: how many tries came before this one."""

    group_id: int
    prompt: Prompt
    epoch: int
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """The outcome of a draw.

    `reason`: why `group` is not trained on; None: it is. `aborted`, `failed`: numbers of trajectories,
    `failures`: of the failed ones by `Sample.failure`, `reward_failed`, `reward_timed_out`: numbers of
    samples. All include first tries. `error`: the engine's last refusal, the crash, or why there is no score.
    `generated`: when the generation ended (`time.perf_counter`).
    """

    group: Group
    reason: str | None
    aborted: int
    failed: int
    failures: Mapping[str, int] = field(default_factory=dict)
    reward_failed: int = 0
    reward_timed_out: int = 0
    error: RlcoreError | None = None
    generated: float

    @property
    def is_answered(self) -> bool:
        """Whether the engine has generated every sample, with or without a reward."""
        return all(sample.status not in UNUSABLE for sample in self.group.samples)

    @property
    def is_crashed(self) -> bool:
        """Whether its generator raised, or returned something invalid."""
        return self.reason == CRASHED

    @property
    def is_unscored(self) -> bool:
        """Whether the rewards failed to score a sample."""
        return self.reward_failed + self.reward_timed_out > 0

    @classmethod
    def unanswered(
        cls, draw: Draw, fresh: Sequence[Sample], reason: str, error: PluginError | None = None
    ) -> "GroupOutcome":
        """The outcome of `fresh` samples without an answer. `error`: of the generator that failed."""
        samples = tuple(replace(sample, status=GenerationStatus.FAILED) for sample in fresh)
        return cls(
            group=Group(group_id=draw.group_id, prompt=draw.prompt, samples=samples, epoch=draw.epoch),
            reason=reason,
            aborted=0,
            failed=0,
            error=error,
            generated=time.perf_counter(),
        )


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The range of weight versions that a sample may have, both ends included."""

    oldest: int
    newest: int

    def check(self, samples: Iterable[Sample]) -> None:
        """Raises `StaleWeightsError` where a token was sampled with other weights."""
        for sample in samples:
            for span in sample.spans:
                if not self.oldest <= span.version <= self.newest and span.version != RECORDED:
                    raise StaleWeightsError(
                        f"Sample {sample.rollout_id} was generated with weight version {span.version},"
                        f" expected {self.oldest}"
                        + (f" to {self.newest}." if self.newest > self.oldest else ".")
                    )


def new_samples(
    draw: Draw, prompt_ids: tuple[int, ...], *, count: int, run_seed: int, prefix: str
) -> list[Sample]:
    """`count` pending samples of a draw.

    `prefix`: in front of their rollout ids, for evaluations and baselines.
    """
    prompt, name = draw.prompt, f"{prefix}{draw.group_id}"
    first = Sample(
        prompt=prompt,
        prompt_ids=prompt_ids,
        group_id=draw.group_id,
        index=0,
        rollout_id=name,
        attempt=draw.attempt,
    )
    return [
        first.but(
            index=index,
            rollout_id=f"{name}.{index}",
            seed=sample_seed(run_seed, prompt.prompt_id, index, draw.attempt, draw.epoch),
        )
        for index in range(count)
    ]


def retried(sample: Sample, draw: Draw, *, run_seed: int) -> Sample:
    """`sample`, one of `draw`, on its next try, with another seed."""
    attempt = sample.attempt + 1
    seed = sample_seed(run_seed, draw.prompt.prompt_id, sample.index, attempt, draw.epoch)
    return replace(sample, attempt=attempt, seed=seed)


def sample_seed(run_seed: int, prompt_id: str, index: int, attempt: int, draw: int) -> int:
    """A seed below 2**31 for sample `index` of the prompt's draw number `draw`, on its try `attempt`.

    It depends on what is sampled, never on when.
    """
    # With a separator, or the numbers 1 and 23 would give the key of 12 and 3.
    key = f"{run_seed}\x1f{prompt_id}\x1f{draw}\x1f{index}\x1f{attempt}"
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big") >> 1
