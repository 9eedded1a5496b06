"""The filter `my_plugin`."""

from statistics import fmean

from rlcore import Group, Verdict

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """Drops a group of short answers. A filter may also return a group that it changed."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._tokens = config.tokens

    def judge(self, group: Group) -> Verdict:
        """The reason becomes the metric `rollout/groups_dropped/too_short`."""
        if fmean(len(sample.response_ids) for sample in group.samples) < self._tokens:
            return Verdict(group=None, reason="too_short")
        return Verdict(group=group)
