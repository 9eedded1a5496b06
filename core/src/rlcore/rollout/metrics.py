"""Metrics of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rlcore.api.types import GenerationStatus, Sample


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


def part_means(samples: Iterable[Sample]) -> dict[str, float]:
    """`reward/<part>`: the mean of each named part over the samples that have it."""
    return _means("reward", (sample.score.parts for sample in samples if sample.score is not None))


def generator_means(samples: Iterable[Sample]) -> dict[str, float]:
    """`generator/<name>`: the mean of what the generator said of the samples, over those that have it."""
    return _means("generator", (sample.metrics for sample in samples))


def _means(prefix: str, named: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for table in named:
        for name, value in table.items():
            parts.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": mean(values) for name, values in sorted(parts.items())}


def mean(values: Sequence[float]) -> float:
    """Exactly rounded sum over count, so that no order of the values changes it."""
    return math.fsum(values) / len(values)
