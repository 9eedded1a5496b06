"""The greedy response to a prompt, generated beside its group: its reward is the group's baseline."""

from collections import Counter
from dataclasses import replace

from rlcore import GroupOutcome, Input, Sampling, Score


def greedy(sampling: Sampling) -> Sampling:
    """`sampling` with the most probable token each time."""
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def with_baseline(outcome: GroupOutcome, baseline: GroupOutcome) -> GroupOutcome:
    """`outcome` with the reward of the greedy response in each sample's extras.

    `baseline`: that response, scored. If the greedy response failed or has no reward, the group cannot be
    trained on: its reason is `greedy_<reason>`. If the generator crashed on it, the whole draw counts as
    crashed. A split trajectory has the mean reward of its samples.
    """
    outcome = replace(
        outcome,
        generated=max(outcome.generated, baseline.generated),
        aborted=outcome.aborted + baseline.aborted,
        failed=outcome.failed + baseline.failed,
        failures=Counter(outcome.failures) + Counter(baseline.failures),
        reward_failed=outcome.reward_failed + baseline.reward_failed,
        reward_timed_out=outcome.reward_timed_out + baseline.reward_timed_out,
    )
    if outcome.reason is not None:
        return outcome
    if baseline.reason is not None:
        reason = baseline.reason if baseline.is_crashed else f"greedy_{baseline.reason}"
        return replace(outcome, reason=reason, error=outcome.error or baseline.error)
    scores = [_return(sample.score) for sample in baseline.group.samples if sample.score is not None]
    reward = sum(scores) / len(scores)
    samples = tuple(
        replace(sample, extras={**sample.extras, Input.GREEDY_REWARD.value: reward})
        for sample in outcome.group.samples
    )
    return replace(outcome, group=replace(outcome.group, samples=samples))


def _return(score: Score) -> float:
    """The reward of the whole response: the sum of its tokens' rewards, if it has any, else its score."""
    return score.value if score.per_token is None else sum(score.per_token)
