"""The greedy response to a prompt, generated beside its group: its reward is the group's baseline."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rlcore.api.inputs import Input
from rlcore.api.types import Score
from rlcore.rollout.group import CRASHED, GroupOutcome


def with_baseline(outcome: GroupOutcome, greedy: GroupOutcome) -> GroupOutcome:
    """`outcome` whose samples know the reward of `greedy`, one sample (or one split trajectory), scored.

    Where the greedy response failed, or got no reward, nothing of the group can be trained on:
    `greedy_<reason>`; where its generator crashed, the draw is as crashed. A split trajectory has the mean
    reward of its samples.
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
    """What the response earned: the sum of its tokens' rewards, where it has them."""
    return score.value if score.per_token is None else sum(score.per_token)
