"""Metrics of samples."""

from collections.abc import Iterable, Mapping
from statistics import fmean

from rlcore.api.types import Sample


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
    return {f"{prefix}/{name}": fmean(values) for name, values in sorted(parts.items())}
