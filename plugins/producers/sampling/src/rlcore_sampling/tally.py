"""The metrics of a rollout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rlcore import RECORDED, Group, GroupOutcome, Input, Sample
from rlcore_toolkit import sample_metrics

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
        self._counts["crashed"] += outcome.is_crashed
        self._counts.update({f"failed/{name}": count for name, count in outcome.failures.items()})
        if outcome.reason is None:
            self._scored[outcome.group.group_id] = outcome.group.samples
        elif not outcome.is_crashed:
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
            metrics["rollout/greedy_reward_mean"] = math.fsum(greedy) / len(greedy)
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
