"""The settings of the advantage."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rlcore import AdvantageConfig, FilterConfig, Neighbor, RunConfig


class MaxRlConfig(AdvantageConfig):
    """Settings of the advantage `max_rl`: none. A group of one would have no advantage."""

    min_group_size: ClassVar[int] = 2

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """Its weights are shares of the group's rewards: one below 0 has no meaning."""
        lowering = [
            f"--filter {neighbor.name}"
            for neighbor in neighbors
            if isinstance(neighbor.config, FilterConfig) and neighbor.config.lowers_rewards
        ]
        if run.kl.kl_coef and run.kl.kl_place == "reward":
            lowering.append("--kl-place reward")
        if lowering:
            yield (
                f"--advantage: found {name!r}, which needs rewards of 0 or more, with {lowering[0]}, which "
                "lowers them; leave one out."
            )
