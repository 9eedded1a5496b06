"""The settings of the loss."""

from typing import ClassVar

from rlcore.config.base import Config
from rlcore.trains_on import TrainsOn


class SftConfig(Config):
    """Settings of the loss `sft`: none."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES})
