"""The settings of the parts."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from rlcore import AdvantageConfig, Input, Neighbor, RunConfig

GAMMA = "discount per live token; 1: none"


class ReinforceConfig(AdvantageConfig):
    """Settings of the advantage `reinforce`."""

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)
    baseline: bool = Field(
        True, description="subtract the mean return of the batch, each rollout counted once"
    )


class NormalizedConfig(AdvantageConfig):
    """Settings of an estimator that gives its advantages mean 0 and variance 1 over the batch."""

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """Whitening them would do nothing."""
        if run.loss.whiten_advantages:
            yield (
                f"--whiten-advantages: found true, but the advantage {name!r} is normalized over the batch "
                "already; leave it out."
            )


class ReinforcePlusPlusConfig(NormalizedConfig):
    """Settings of the advantage `reinforce_plus_plus`."""

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)


class ReMaxConfig(AdvantageConfig):
    """Settings of the advantage `remax`."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.GREEDY_REWARD})

    gamma: float = Field(1.0, ge=0, le=1, description=GAMMA)


class PlusPlusBaselineConfig(NormalizedConfig):
    """No settings. For `reinforce_plus_plus_baseline`."""

    min_group_size: ClassVar[int] = 2


class SiblingsConfig(AdvantageConfig):
    """No settings. For what compares the rollouts of a prompt: a group of one would have no advantage."""

    min_group_size: ClassVar[int] = 2
