"""The settings of the loss."""

from typing import ClassVar

from rlcore import LossConfig, TrainsOn


class SftConfig(LossConfig):
    """Settings of the loss `sft`: none."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES})
