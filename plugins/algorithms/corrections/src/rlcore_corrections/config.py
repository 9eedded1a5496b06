"""The settings of the corrections. A ratio is of the trainer's old policy to the engine's."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlcore import CorrectionConfig, Input, Neighbor, RunConfig


class EngineRatioConfig(CorrectionConfig):
    """Settings of a correction by the ratio of the trainer's old policy to the engine's."""

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """It does nothing where the two are the same log-probs."""
        if run.loss.old_log_probs == "rollout":
            yield (
                f"--correction: found {name!r}, which compares the trainer's old log-probs with the "
                "engine's, but --old-log-probs rollout makes them the same; expected --old-log-probs trainer."
            )


class WeighingConfig(EngineRatioConfig):
    """Settings of one that weighs tokens, whatever they are."""

    @property
    def weighs(self) -> bool:
        return True


def _in_order(config: Any) -> Any:
    low, high = getattr(config, "lowest", config.low), config.high
    if low > high:
        raise ValueError(f"low ({low:g}) is above high ({high:g})")
    return config


class TisConfig(WeighingConfig):
    """Settings of the correction `tis`."""

    low: float = Field(0.0, ge=0, le=1e6, description="smallest weight")
    high: float = Field(2.0, gt=0, le=1e6, description="largest weight")

    _bounds = model_validator(mode="after")(_in_order)


class MisConfig(EngineRatioConfig):
    """Settings of the correction `mis`. The bounds hold at the chosen level."""

    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="which ratio counts: that of each token, the product over the sample, or their geometric "
        "mean",
    )
    mode: Literal["truncate", "clip", "mask", "reject"] = Field(
        "truncate",
        description="what the bounds do; truncate: a ratio is at most high; clip: it is from low to high; "
        "mask: outside it becomes 0; reject: outside it becomes 0, and inside 1",
    )
    low: float | None = Field(
        None, ge=0, le=1e6, description="lower bound of clip, mask and reject; none: 1 / high"
    )
    high: float = Field(2.0, gt=0, le=1e6, description="upper bound")
    veto: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a sample with a token of a smaller ratio is left out; none: no sample is",
    )

    @property
    def weighs(self) -> bool:
        return self.mode != "reject"

    @property
    def lowest(self) -> float:
        """The lower bound that applies."""
        if self.mode == "truncate":
            return 0.0
        return 1 / self.high if self.low is None else self.low

    @model_validator(mode="after")
    def _bounds(self) -> "MisConfig":
        if self.mode == "truncate" and self.low is not None:
            raise ValueError("low has no effect with mode truncate, expected mode clip, mask or reject")
        _in_order(self)
        return self


class IcePopConfig(WeighingConfig):
    """Settings of the correction `icepop`: the paper's bounds."""

    low: float = Field(0.5, ge=0, le=1e6, description="tokens with a smaller ratio are left out")
    high: float = Field(5.0, gt=0, le=1e6, description="tokens with a larger ratio are left out")

    _bounds = model_validator(mode="after")(_in_order)


class DivergenceConfig(EngineRatioConfig):
    """Settings of the correction `divergence`."""

    estimator: Literal["k2", "k3"] = Field("k3", description="estimate of the KL from engine to trainer")
    level: Literal["token", "mean", "max"] = Field(
        "token",
        description="which estimate counts: that of each token, or the mean or the largest of the sample",
    )
    high: float = Field(0.1, gt=0, le=1e6, description="tokens with a larger estimate are left out")


class OpsmConfig(CorrectionConfig):
    """Settings of the correction `opsm`."""

    delta: float = Field(
        1e-4,
        ge=0,
        le=100,
        description="largest mean of (old - new log-prob) at which a bad sample still counts",
    )

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """It compares the policy with itself where there is one optimizer step."""
        if run.loss.old_log_probs == "trainer" and run.optimizer.minibatches == 1:
            yield (
                f"--correction: found {name!r}, which compares the old with the new log-probs, but they are "
                "the same with --minibatches 1; expected at least 2, or --old-log-probs rollout."
            )


class DecoupledConfig(WeighingConfig):
    """Settings of the correction `decoupled`."""

    cap: float | None = Field(
        None, gt=1, le=1e6, description="tokens with a larger ratio are left out; none: no token is"
    )


class SelfNormalizedConfig(WeighingConfig):
    """Settings of the correction `self_normalized`."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.OLD_LOG_PROBS})

    level: Literal["token", "sequence"] = Field(
        "token", description="which ratio counts: that of each token, or the product over the sample"
    )
    high: float = Field(2.0, gt=0, le=1e6, description="largest ratio, before the division by the mean")


class M2poConfig(EngineRatioConfig):
    """Settings of the correction `m2po`: the paper's bound."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.OLD_LOG_PROBS})

    high: float = Field(
        0.04, gt=0, le=100, description="largest mean of the squared log-ratio over the batch"
    )


class TopEntropyConfig(CorrectionConfig):
    """Settings of the correction `top_entropy`: the paper's share."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.OLD_ENTROPY})

    share: float = Field(0.2, gt=0, le=1, description="share of the batch's tokens that are trained on")


class ClipCovConfig(CorrectionConfig):
    """Settings of the correction `clip_cov`: the paper's."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.OLD_LOG_PROBS})

    share: float = Field(2e-4, gt=0, le=1, description="share of the batch's tokens that is left out")
    low: float = Field(1.0, ge=0, le=1e6, description="covariance above which a token may be left out")
    high: float = Field(5.0, gt=0, le=1e6, description="covariance below which a token may be left out")

    _bounds = model_validator(mode="after")(_in_order)
