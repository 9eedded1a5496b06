"""Group filters."""

from rlcore.config.base import Config
from rlcore.interfaces import Verdict
from rlcore.types import Group


class KeepAll:
    """Keeps every group."""

    def __init__(self, config: Config) -> None:
        del config

    def judge(self, group: Group) -> Verdict:
        """The group, unchanged."""
        return Verdict(group=group)


class ZeroStd:
    """Drops a group whose rewards are all equal: its advantages are 0 (DAPO's dynamic sampling).

    https://arxiv.org/abs/2503.14476, section 3.2. A group of one is such a group. A sample without a score
    takes no part in the judgement.
    """

    def __init__(self, config: Config) -> None:
        del config

    def judge(self, group: Group) -> Verdict:
        """Keep, or drop for `zero_std`."""
        rewards = {sample.score.value for sample in group.samples if sample.score is not None}
        return Verdict(group=group) if len(rewards) > 1 else Verdict(group=None, reason="zero_std")
