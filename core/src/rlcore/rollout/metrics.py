"""The metrics of a rollout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlcore.api.inputs import Input
from rlcore.api.types import RECORDED, GenerationStatus, Group, Sample
from rlcore.rollout.group import CRASHED, GroupOutcome

GREEDY = Input.GREEDY_REWARD.value
COUNTED = ("aborted", "failed", "reward_failed", "reward_timed_out")
"""Counts of a `GroupOutcome` that are metrics of every rollout, even if they are 0."""


class Tally:
    """Counts over the groups made for one rollout."""

    def __init__(self) -> None:
        self._counts = Counter({name: 0 for name in (*COUNTED, "crashed")})
        self._dropped: Counter[str] = Counter()
        self._scored: dict[int, tuple[Sample, ...]] = {}

    def add(self, outcome: GroupOutcome) -> None:
        """Count the outcome of one draw. Groups that are dropped later are counted by `drop`."""
        for name in COUNTED:
            self._counts[name] += getattr(outcome, name)
        self._counts["crashed"] += outcome.reason == CRASHED
        self._counts.update({f"failed/{name}": count for name, count in outcome.failures.items()})
        if outcome.reason is None:
            self._scored[outcome.group.group_id] = outcome.group.samples
        elif outcome.reason != CRASHED:
            self.drop(outcome.reason)

    def drop(self, reason: str) -> None:
        """Count a group that is not trained on."""
        self._dropped[reason] += 1

    @property
    def dropped(self) -> int:
        """Groups that are not trained on."""
        return self._dropped.total()

    def metrics(self) -> dict[str, float]:
        """`rollout/…` and `reward/<part>`.

        Means are over all scored samples, even those that a filter dropped.
        """
        metrics: dict[str, float] = {f"rollout/{name}": count for name, count in self._counts.items()}
        metrics["rollout/groups_dropped"] = self._dropped.total()
        metrics |= {
            f"rollout/groups_dropped/{reason}": count for reason, count in sorted(self._dropped.items())
        }
        scored = [sample for samples in self._scored.values() for sample in samples]
        metrics["rollout/samples"] = len(scored)
        greedy = [sample.extras[GREEDY] for sample in scored if GREEDY in sample.extras]
        if greedy:
            metrics["rollout/greedy_reward_mean"] = mean(greedy)
        return metrics | sample_metrics(scored)

    def split(self, groups: Iterable[Group], waiting: Iterable[Group]) -> Tally:
        """Leave only the samples of `groups` in this tally.

        Returns the tally of the next rollout, with the others.
        """
        for group in groups:  # those of a resumed run are not known yet
            self._scored.setdefault(group.group_id, group.samples)
        rest = Tally()
        for group in waiting:
            if group.group_id in self._scored:
                rest._scored[group.group_id] = self._scored.pop(group.group_id)
        return rest


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Lengths, truncation and, of scored samples, rewards; without samples only the counts of tokens."""
    responses = [len(sample.response_ids) for sample in samples]
    metrics: dict[str, float] = {
        "rollout/response_tokens": sum(responses),
        "rollout/prompt_tokens": sum(len(sample.prompt_ids) for sample in samples),
    }
    if not samples:
        return metrics
    metrics["rollout/response_length_mean"] = mean(responses)
    metrics["rollout/response_length_max"] = max(responses)
    metrics["rollout/truncated"] = mean([sample.status is GenerationStatus.TRUNCATED for sample in samples])
    metrics |= generator_means(samples)
    rewards = [sample.score.value for sample in samples if sample.score is not None]
    if not rewards:
        return metrics
    reward_mean = mean(rewards)
    metrics["rollout/reward_mean"] = reward_mean
    metrics["rollout/reward_std"] = math.sqrt(mean([(reward - reward_mean) ** 2 for reward in rewards]))
    return metrics | part_means(samples)


def staleness_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """How many versions behind `version` the weights were that sampled the live tokens of `groups`."""
    tokens: Counter[int] = Counter()
    for sample in (sample for group in groups for sample in group.samples):
        place = 0
        for sampled, length in sample.version_runs:
            if sampled != RECORDED:
                run = sample.loss_mask[place : place + length]
                tokens[version - sampled] += length - run.count(0)
            place += length
    behind = +tokens  # those with a live token
    if not behind:
        return {}
    total = sum(age * count for age, count in behind.items())
    return {"rollout/staleness": total / behind.total(), "rollout/staleness_max": max(behind)}


def part_means(samples: Iterable[Sample]) -> dict[str, float]:
    """`reward/<part>`: the mean of each named part over the samples that have it."""
    return _means("reward", (sample.score.parts for sample in samples if sample.score is not None))


def generator_means(samples: Iterable[Sample]) -> dict[str, float]:
    """`generator/<name>`: the mean of what the generator said of the samples, over those that have it."""
    return _means("generator", (sample.metrics for sample in samples))


def _means(prefix: str, named: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for one in named:
        for name, value in one.items():
            parts.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": mean(values) for name, values in sorted(parts.items())}


def mean(values: Sequence[float]) -> float:
    """Exactly rounded sum over count, so that no order of the values changes it."""
    return math.fsum(values) / len(values)
