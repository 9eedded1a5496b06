"""Group filters. They see scored groups: every sample has a score."""

from dataclasses import replace
from statistics import fmean

from rlcore.interfaces import Verdict
from rlcore.types import GenerationStatus, Group, Sample, Score
from rlcore_filters.config import DuplicatesConfig, OverlongConfig, RewardRangeConfig


class Overlong:
    """Keeps what was too long out of the training, in one of DAPO's two ways.

    https://arxiv.org/abs/2503.14476, section 3.4. `mask`: no token of a truncated sample is trained on; its
    reward stays part of the group, and a group of nothing else is dropped for `overlong`. `penalty`: with
    n response tokens, the reward falls by (n - (max_tokens - buffer)) / buffer, kept within 0 and 1
    (equation 13).
    """

    def __init__(self, config: OverlongConfig) -> None:
        self._config = config

    def judge(self, group: Group) -> Verdict:
        """The group with masked or penalized samples, or dropped."""
        if self._config.mode == "penalty":
            return Verdict(group=replace(group, samples=tuple(map(self._penalized, group.samples))))
        truncated = [sample.status is GenerationStatus.TRUNCATED for sample in group.samples]
        if all(truncated):
            return Verdict(group=None, reason="overlong")
        samples = (
            _masked(sample) if cut else sample for sample, cut in zip(group.samples, truncated, strict=True)
        )
        return Verdict(group=replace(group, samples=tuple(samples)))

    def _penalized(self, sample: Sample) -> Sample:
        penalty = self._penalty(len(sample.response_ids))
        return replace(sample, score=_lowered(sample, penalty)) if penalty else sample

    def _penalty(self, tokens: int) -> float:
        longest, buffer = self._config.max_tokens, self._config.buffer
        assert longest is not None, "checked by the config"
        assert buffer is not None, "checked by the config"
        return min(1.0, max(0.0, (tokens - (longest - buffer)) / buffer))


class Duplicates:
    """Drops a group with fewer than `min_distinct` distinct responses, for `duplicates`.

    Responses are compared token by token, those of a split rollout as a whole.
    """

    def __init__(self, config: DuplicatesConfig) -> None:
        self._min_distinct = config.min_distinct

    def judge(self, group: Group) -> Verdict:
        """Keep, or drop."""
        distinct = {tuple(sample.response_ids for sample in rollout) for rollout in _rollouts(group)}
        if len(distinct) < self._min_distinct:
            return Verdict(group=None, reason="duplicates")
        return Verdict(group=group)


class RewardRange:
    """Drops a group whose mean reward is below `low` or above `high`, for `reward_low` or `reward_high`.

    Online prompt filtering of PRIME (https://arxiv.org/abs/2502.01456). Both bounds are kept. Samples that
    were split from one rollout count once, with their mean reward.
    """

    def __init__(self, config: RewardRangeConfig) -> None:
        self._config = config

    def judge(self, group: Group) -> Verdict:
        """Keep, or drop."""
        mean = fmean(fmean(_score(sample).value for sample in rollout) for rollout in _rollouts(group))
        if mean < self._config.low:
            return Verdict(group=None, reason="reward_low")
        if mean > self._config.high:
            return Verdict(group=None, reason="reward_high")
        return Verdict(group=group)


def _rollouts(group: Group) -> list[list[Sample]]:
    """The samples of each rollout, in order."""
    found: dict[str, list[Sample]] = {}
    for sample in group.samples:
        found.setdefault(sample.rollout_id, []).append(sample)
    return list(found.values())


def _score(sample: Sample) -> Score:
    assert sample.score is not None, "the producer drops groups with an unscored sample"
    return sample.score


def _masked(sample: Sample) -> Sample:
    """`sample` without a token to train on; a log-prob is 0 where the mask is 0."""
    tokens = len(sample.response_ids)
    return replace(sample, loss_mask=(0,) * tokens, log_probs=(0.0,) * tokens)


def _lowered(sample: Sample, penalty: float) -> Score:
    """The score less `penalty`, which falls on the last live token where rewards are per token."""
    score = _score(sample)
    per_token = score.per_token
    if per_token is not None:
        last = max((place for place, live in enumerate(sample.loss_mask) if live), default=-1)
        per_token = tuple(value - penalty * (place == last) for place, value in enumerate(per_token))
    return replace(score, value=score.value - penalty, per_token=per_token)
