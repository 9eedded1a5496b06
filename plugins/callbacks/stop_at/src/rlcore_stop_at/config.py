"""The settings of the callbacks."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from rlcore import Config, Neighbor, PartConfig, RunConfig


class MetricConfig(Config):
    """Which metric is watched, and when it is better than before."""

    metric: str = Field(min_length=1, description="key of metrics.jsonl, such as eval/copy/score")
    goal: Literal["max", "min"] = Field("max", description="whether higher or lower is better")
    min_delta: float = Field(0.0, ge=0, description="a value is better only by more than this")


class StopAtConfig(MetricConfig):
    """When the run ends."""

    above: float | None = Field(None, description="end the run once the metric is at least this")
    below: float | None = Field(None, description="end the run once the metric is at most this")
    patience: int = Field(
        0, ge=0, description="end the run after so many values in a row without a better one; 0: never"
    )

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Self:
        if self.above is None and self.below is None and not self.patience:
            raise ValueError("nothing would end the run; give above, below or patience")
        return self


class ReduceLrConfig(MetricConfig):
    """When and how far the learning rate falls."""

    patience: int = Field(
        10, ge=1, description="the learning rate falls after so many values in a row without a better one"
    )
    factor: float = Field(0.5, gt=0, lt=1, description="factor by which the learning rate then falls")
    min_scale: float = Field(
        0.01, gt=0, lt=1, description="smallest share of the scheduled learning rate that is left"
    )


class AdaptiveKlConfig(PartConfig):
    """Where the KL to the reference is steered to, and how fast."""

    target: float = Field(gt=0, description="the KL to the reference to aim at, in nats a token")
    gain: float = Field(
        0.1, gt=0, le=1, description="how much the coefficient changes in a step: by gain times the error"
    )

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """It multiplies the coefficient, so that there must be one."""
        if not run.kl.kl_coef:
            yield f"--callback: found {name!r}, which steers --kl-coef, but that is 0; expected more than 0."
        if run.policies:
            policy = next(iter(run.policies))
            yield (
                f"--callback: found {name!r}, which reads the KL of one policy and would steer all by it, "
                f"but there is --policy.{policy}; leave one out."
            )
