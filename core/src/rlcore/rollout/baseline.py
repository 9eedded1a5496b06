"""The greedy response to a prompt, generated beside its group: its reward is the group's baseline."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rlcore.api.inputs import Input
from rlcore.api.types import Score
from rlcore.rollout.group import CRASHED, GroupOutcome


def with_baseline(outcome: GroupOutcome, greedy: GroupOutcome) -> GroupOutcome:
    """`outcome` with the reward of the greedy response in each sample's extras.

    `greedy`: that response, scored. If the greedy response failed or has no reward, the group cannot be
    trained on: its reason is `greedy_<reason>`. If the generator crashed on it, the whole draw counts as
    crashed. A split trajectory has the mean reward of its samples.
    """
    outcome = replace(
        outcome,
        generated=max(outcome.generated, greedy.generated),
        aborted=outcome.aborted + greedy.aborted,
        failed=outcome.failed + greedy.failed,
        failures=Counter(outcome.failures) + Counter(greedy.failures),
        reward_failed=outcome.reward_failed + greedy.reward_failed,
        reward_timed_out=outcome.reward_timed_out + greedy.reward_timed_out,
    )
    if outcome.reason is not None:
        return outcome
    if greedy.reason is not None:
        reason = CRASHED if greedy.reason == CRASHED else f"greedy_{greedy.reason}"
        return replace(outcome, reason=reason, error=outcome.error or greedy.error)
    scores = [_return(sample.score) for sample in greedy.group.samples if sample.score is not None]
    reward = sum(scores) / len(scores)
    samples = tuple(
        replace(sample, extras={**sample.extras, Input.GREEDY_REWARD.value: reward})
        for sample in outcome.group.samples
    )
    return replace(outcome, group=replace(outcome.group, samples=samples))


def _return(score: Score) -> float:
    """The reward of the whole response: the sum of its tokens' rewards, if it has any, else its score."""
    return score.value if score.per_token is None else sum(score.per_token)
