"""Metrics of the samples of a rollout."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from rlcore import GenerationStatus, Sample, generator_means, part_means


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Lengths, truncation and, of scored samples, rewards; without samples only the counts of tokens.

    With several policies, truncation and mean reward of each, too.
    """
    responses = [len(sample.response_ids) for sample in samples]
    metrics: dict[str, float] = {
        "rollout/response_tokens": sum(responses),
        "rollout/prompt_tokens": sum(len(sample.prompt_ids) for sample in samples),
    }
    if not samples:
        return metrics
    metrics["rollout/response_length_mean"] = fmean(responses)
    metrics["rollout/response_length_max"] = max(responses)
    metrics["rollout/truncated"] = _truncated(samples)
    metrics |= generator_means(samples) | _by_policy(samples)
    rewards = _rewards(samples)
    if not rewards:
        return metrics
    reward_mean = fmean(rewards)
    metrics["rollout/reward_mean"] = reward_mean
    metrics["rollout/reward_std"] = math.sqrt(fmean([(reward - reward_mean) ** 2 for reward in rewards]))
    return metrics | _groups_equal(samples) | part_means(samples)


def _truncated(samples: Sequence[Sample]) -> float:
    return fmean([sample.status is GenerationStatus.TRUNCATED for sample in samples])


def _rewards(samples: Iterable[Sample]) -> list[float]:
    return [sample.score.value for sample in samples if sample.score is not None]


def _by_policy(samples: Sequence[Sample]) -> dict[str, float]:
    """Of several policies, truncation and mean reward of each, beside the metrics of its training.

    What trains nothing, such as a frozen opponent, counts as the run's own.
    """
    if not any(span.policy for sample in samples for span in sample.spans):
        return {}  # of one policy, as most runs
    trained = {name for sample in samples for name in sample.policies}
    policies: dict[str, list[Sample]] = {}
    for sample in samples:
        policies.setdefault(sample.policy if sample.policy in trained else "", []).append(sample)
    metrics: dict[str, float] = {}
    for policy, own in sorted(policies.items()) if any(policies) else ():
        place = f"policy.{policy}" if policy else "train"
        metrics[f"{place}/truncated"] = _truncated(own)
        if rewards := _rewards(own):
            metrics[f"{place}/reward_mean"] = fmean(rewards)
    return metrics


def _groups_equal(samples: Iterable[Sample]) -> dict[str, float]:
    """The share of groups whose rewards are all equal, over groups of several rollouts; empty without one.

    The samples of each policy are a group of their own.
    """
    groups: dict[tuple[int, str], dict[str, float]] = {}
    for sample in samples:
        if sample.score is not None:
            groups.setdefault((sample.group_id, sample.policy), {})[sample.rollout_id] = sample.score.value
    equal = [len(set(rewards.values())) == 1 for rewards in groups.values() if len(rewards) > 1]
    return {"rollout/groups_equal": fmean(equal)} if equal else {}
