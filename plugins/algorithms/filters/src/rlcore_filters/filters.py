"""Group filters. They see scored groups: every sample has a score."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from rlcore import (
    RECORDED,
    DataError,
    GenerationStatus,
    Group,
    PackedFlags,
    PackedFloats,
    Sample,
    Score,
    Verdict,
)
from rlcore_filters.config import (
    DuplicatesConfig,
    OverlongConfig,
    PreferConfig,
    RewardRangeConfig,
    StalenessConfig,
)


class Overlong:
    """Keeps what was too long out of the training.

    `mask`: no token of a truncated sample is trained on; its reward stays part of the group, and a group of
    nothing else is dropped for `overlong`. `drop`: so is any group with a truncated sample. `penalty`: with
    n response tokens, the reward falls by (n - (max_tokens - buffer)) / buffer, kept within 0 and 1
    (DAPO, https://arxiv.org/abs/2503.14476, equation 13; `mask` is its overlong filtering, section 3.4).
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
        if self._config.mode == "drop" and any(truncated):
            return Verdict(group=None, reason="overlong")
        return Verdict(group=_with_masked(group, truncated))

    def _penalized(self, sample: Sample) -> Sample:
        penalty = self._penalty(len(sample.response_ids))
        if not penalty or sample.score is None:
            return sample
        return replace(sample, score=_lowered(sample.score, sample, penalty))

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


class Staleness:
    """Keeps samples of old weights out of the training.

    The age of a sample: publications from the oldest weights that made a token of it to the newest ones that
    made a token of its group, which is judged as soon as it is complete. Samples older than `max_age` are
    masked, with their rewards still part of the group, and a group of nothing else is dropped for `stale`;
    or any such sample drops its group.
    """

    def __init__(self, config: StalenessConfig) -> None:
        self._config = config

    def judge(self, group: Group) -> Verdict:
        """The group, without a token of its stale samples to train on, or dropped."""
        sampled = [_sampled(sample) for sample in group.samples]
        newest = max((version for versions in sampled for version in versions), default=0)
        stale = [newest - min(versions, default=newest) > self._config.max_age for versions in sampled]
        if not any(stale):
            return Verdict(group=group)
        if self._config.mode == "drop" or all(stale):
            return Verdict(group=None, reason="stale")
        return Verdict(group=_with_masked(group, stale))


class Prefer:
    """Keeps every group, and says which are trained on first (`rlcore.GroupOrder`)."""

    def __init__(self, config: PreferConfig) -> None:
        self._key = {"newest": _newest, "reward_spread": _reward_spread, "priority": _priority}[config.by]

    def judge(self, group: Group) -> Verdict:
        """Keep."""
        return Verdict(group=group)

    def order(self, groups: Sequence[Group], version: int) -> list[Group]:
        """By the key, the largest first; of equal ones the oldest."""
        return sorted(groups, key=self._key, reverse=True)


class RewardRange:
    """Drops a group whose mean reward is below `low` or above `high`, for `reward_low` or `reward_high`.

    Online prompt filtering of PRIME (https://arxiv.org/abs/2502.01456). Both bounds are kept. Samples that
    were split from one rollout count once, with their mean reward. Of several policies, those whose means are
    out of the range are masked, and a group of nothing else is dropped.
    """

    def __init__(self, config: RewardRangeConfig) -> None:
        self._config = config

    def judge(self, group: Group) -> Verdict:
        """Keep, or drop; or keep the samples of some policies."""
        reasons = {policy: self._reason(fmean(means)) for policy, means in sorted(_means(group).items())}
        # a policy without live tokens, such as a frozen opponent, trains nothing
        live = {name for sample in group.samples for name in sample.policies} & reasons.keys()
        if reasons and all(reasons[policy] for policy in live or reasons):
            return Verdict(group=None, reason=next(filter(None, reasons.values())))
        if not any(reasons.values()):
            return Verdict(group=group)
        out = [bool(reasons.get(sample.policy)) for sample in group.samples]
        return Verdict(group=_with_masked(group, out))

    def _reason(self, mean: float) -> str | None:
        if mean < self._config.low:
            return "reward_low"
        if mean > self._config.high:
            return "reward_high"
        return None


def _newest(group: Group) -> float:
    """The oldest weights that made a token of it; what was recorded is never old."""
    return min((version for sample in group.samples for version in _sampled(sample)), default=math.inf)


def _reward_spread(group: Group) -> float:
    return max(map(pstdev, _means(group).values()), default=0.0)


def _priority(group: Group) -> float:
    priority = group.prompt.metadata.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise DataError(
            f"The prompt {group.prompt.prompt_id!r} has the priority {priority!r}, expected a number."
        )
    return priority


def _means(group: Group) -> dict[str, list[float]]:
    """By policy, the mean reward of each rollout with a score; samples split from one count once."""
    values: dict[str, dict[str, list[float]]] = {}
    for sample in group.samples:
        if sample.score is not None:
            rollouts = values.setdefault(sample.policy, {})
            rollouts.setdefault(sample.rollout_id, []).append(sample.score.value)
    return {policy: [*map(fmean, rollouts.values())] for policy, rollouts in values.items()}


def _sampled(sample: Sample) -> set[int]:
    """The weights that made its tokens; recorded ones, which no weights of the run made, have no age."""
    return set(sample.versions) - {RECORDED}


def _rollouts(group: Group) -> list[list[Sample]]:
    """The samples of each rollout, in order."""
    by_rollout: dict[str, list[Sample]] = {}
    for sample in group.samples:
        by_rollout.setdefault(sample.rollout_id, []).append(sample)
    return list(by_rollout.values())


def _with_masked(group: Group, chosen: Sequence[bool]) -> Group:
    """`group` without a token of the chosen samples to train on; a log-prob is 0 where the mask is 0."""

    def masked(sample: Sample) -> Sample:
        tokens = len(sample.response_ids)
        nothing = PackedFlags.full(tokens, 0), PackedFloats.full(tokens, 0.0)
        return replace(sample, loss_mask=nothing[0], log_probs=nothing[1])

    samples = (masked(s) if out else s for s, out in zip(group.samples, chosen, strict=True))
    return replace(group, samples=tuple(samples))


def _lowered(score: Score, sample: Sample, penalty: float) -> Score:
    """The score of `sample` less `penalty`, which falls on its last live token where tokens have rewards."""
    per_token = score.per_token
    if per_token is not None:
        last = max((place for place, live in enumerate(sample.loss_mask) if live), default=-1)
        per_token = tuple(value - penalty * (place == last) for place, value in enumerate(per_token))
    return replace(score, value=score.value - penalty, per_token=per_token)
