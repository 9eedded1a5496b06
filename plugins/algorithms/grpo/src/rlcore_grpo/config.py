"""The settings of the parts."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from rlcore import AdvantageConfig, FilterConfig, Input, LossConfig, Neighbor, RunConfig


class ZeroStdConfig(FilterConfig):
    """Settings of the filter `zero_std`: none. A group of one has no spread of rewards."""

    min_group_size: ClassVar[int] = 2


class GroupAdvantageConfig(AdvantageConfig):
    """Settings of the advantage `grpo`. A group of one has no advantage, so the group size is 2 or more."""

    min_group_size: ClassVar[int] = 2

    std: bool = Field(True, description="divide by the standard deviation of the group")
    eps: float = Field(1e-6, gt=0, le=1, description="added to the standard deviation")
    single: Literal["zero", "reward"] = Field(
        "zero", description="advantage of a group of one: zero, or its reward as it is"
    )

    def needed_group_size(self) -> int:
        """A group of one that keeps its reward can be trained on."""
        return 1 if self.single == "reward" else self.min_group_size


class DrGroupAdvantageConfig(GroupAdvantageConfig):
    """Settings of the advantage `dr_grpo`: those of `grpo`, without the standard deviation."""

    std: bool = Field(False, description="divide by the standard deviation of the group")


class PassAtKConfig(AdvantageConfig):
    """Settings of the advantage `pass_at_k`. A group holds at least k responses."""

    k: int = Field(4, ge=1, le=1024, description="size of the sets of responses in which the best one counts")

    def needed_group_size(self) -> int:
        """One set of k, and two to compare."""
        return max(2, self.k)


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


class DppoConfig(LossConfig):
    """Settings of the loss `dppo`. The paper's bounds of the total variation."""

    divergence: Literal["tv", "kl"] = Field(
        "tv", description="distance of the policies at a token: total variation, or KL from old to new"
    )
    low: float = Field(
        0.15,
        gt=0,
        le=100,
        description="how far a token with a negative advantage may fall, by the divergence",
    )
    high: float = Field(
        0.15,
        gt=0,
        le=100,
        description="how far a token with a positive advantage may rise, by the divergence",
    )


class KlCovConfig(LossConfig):
    """Settings of the loss `kl_cov`: the paper's of its 7B model."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.OLD_LOG_PROBS})

    share: float = Field(2e-3, gt=0, le=1, description="share of the batch's tokens that is penalized")
    coef: float = Field(1.0, ge=0, le=100, description="coefficient of the penalty |log r|")

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """The penalty has no gradient where new and old policy are the same."""
        if run.loss.old_log_probs == "trainer" and run.optimizer.minibatches == 1:
            yield (
                f"--loss: found {name!r}, whose penalty compares the old with the new log-probs, but they "
                "are the same with --minibatches 1; expected at least 2."
            )


class PpoClipConfig(LossConfig):
    """Settings of the loss `ppo_clip`."""

    clip_low: float = Field(0.2, gt=0, le=1, description="the ratio is clipped below 1 - this")
    clip_high: float | None = Field(
        None, gt=0, le=100, description="the ratio is clipped above 1 + this; none: clip_low"
    )
    dual_clip: float | None = Field(
        None, gt=1, le=1000, description="largest ratio that counts for a negative advantage; none: no bound"
    )

    @property
    def highest(self) -> float:
        """The upper clip that applies."""
        return self.clip_low if self.clip_high is None else self.clip_high


class CispoConfig(LossConfig):
    """Settings of the loss `cispo`. By default there is no lower bound, and 5 is the largest weight."""

    clip_low: float = Field(1.0, gt=0, le=1, description="a weight is at least 1 - this; 1: no lower bound")
    clip_high: float = Field(4.0, gt=0, le=100, description="a weight is at most 1 + this")


class SapoConfig(LossConfig):
    """Settings of the loss `sapo`. The higher a temperature, the faster a token fades off policy."""

    tau_pos: float = Field(1.0, gt=0, le=100, description="temperature where the advantage is positive")
    tau_neg: float = Field(1.05, gt=0, le=100, description="temperature elsewhere")


class GspoConfig(LossConfig):
    """Settings of the loss `gspo`. The ratio is a mean over a sequence, so its clips are narrow."""

    clip_low: float = Field(3e-4, gt=0, le=1, description="the ratio is clipped below 1 - this")
    clip_high: float = Field(4e-4, gt=0, le=100, description="the ratio is clipped above 1 + this")


class GmpoConfig(LossConfig):
    """Settings of the loss `gmpo`: the paper's bounds, of a token's log-ratio."""

    clip_low: float = Field(
        0.4, gt=0, le=20, description="a log-ratio is clipped below minus this where A < 0"
    )
    clip_high: float = Field(0.4, gt=0, le=20, description="a log-ratio is clipped above this where A > 0")


class VespoConfig(LossConfig):
    """Settings of the loss `vespo`: exponents and rates of the weight W^k exp(λ (1 - W))."""

    k_pos: float = Field(2.0, ge=0, le=100, description="k where the advantage is positive")
    lambda_pos: float = Field(3.0, ge=0, le=100, description="λ where the advantage is positive")
    k_neg: float = Field(3.0, ge=0, le=100, description="k elsewhere")
    lambda_neg: float = Field(2.0, ge=0, le=100, description="λ elsewhere")
