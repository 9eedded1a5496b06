"""The settings of the parts."""

from typing import ClassVar

from pydantic import Field

from rlcore import AdvantageConfig, Input

GAMMA = "discount per live token; 1: none"


class ReinforceConfig(AdvantageConfig):
    """Settings of the advantage `reinforce`."""

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)
    baseline: bool = Field(
        True, description="subtract the mean return of the batch, each rollout counted once"
    )


class ReinforcePlusPlusConfig(AdvantageConfig):
    """Settings of the advantage `reinforce_plus_plus`."""

    normalizes: ClassVar[bool] = True

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)


class ReMaxConfig(AdvantageConfig):
    """Settings of the advantage `remax`."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.GREEDY_REWARD})

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)


class PlusPlusBaselineConfig(AdvantageConfig):
    """No settings. For `reinforce_plus_plus_baseline`."""

    min_group_size: ClassVar[int] = 2
    normalizes: ClassVar[bool] = True


class SiblingsConfig(AdvantageConfig):
    """No settings. For what compares the rollouts of a prompt: a group of one would have no advantage."""

    min_group_size: ClassVar[int] = 2
