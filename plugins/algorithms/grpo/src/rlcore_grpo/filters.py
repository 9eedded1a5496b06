"""The group filter."""

from statistics import mean

from rlcore import Config, Group, Verdict


class ZeroStd:
    """Drops a group whose rewards are all equal: its advantages are 0 (DAPO's dynamic sampling).

    https://arxiv.org/abs/2503.14476, section 3.2. A group of one rollout is such a group. Samples that were
    split from one rollout count once, with their mean reward, as they do in the advantage. A sample without a
    score takes no part in the judgement. Of several policies, one with different rewards keeps the group.
    """

    def __init__(self, config: Config) -> None:
        del config

    def judge(self, group: Group) -> Verdict:
        """Keep, or drop for `zero_std`."""
        scores: dict[tuple[str, str], list[float]] = {}
        for sample in group.samples:
            if sample.score is not None:
                scores.setdefault((sample.policy, sample.rollout_id), []).append(sample.score.value)
        # exact: equal values have the same mean
        rewards = {(policy, mean(values)) for (policy, _), values in scores.items()}
        differs = len(rewards) > len({policy for policy, _ in rewards})
        return Verdict(group=group) if differs else Verdict(group=None, reason="zero_std")
