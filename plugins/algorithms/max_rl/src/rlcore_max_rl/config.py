"""The settings of the advantage."""

from typing import ClassVar

from rlcore import AdvantageConfig


class MaxRlConfig(AdvantageConfig):
    """Settings of the advantage `max_rl`: none. A group of one would have no advantage."""

    min_group_size: ClassVar[int] = 2
    from_zero: ClassVar[bool] = True
