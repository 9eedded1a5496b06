"""What the settings of every engine have in common."""

from typing import Literal

from pydantic import Field

from rlcore.config.parts import PassingConfig


class EngineConfig(PassingConfig):
    """`--engine.*`: what core reads. An engine derives its own from it."""

    dtype: Literal["fp32", "bf16"] | None = Field(
        default=None, description="Precision of the engine's weights; the run's where not given."
    )
    publish: str = Field(default="disk", description="How new weights reach the server.")
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the first engine, the others take the next ones; free ones where not given.",
    )
    start_limit_s: float = Field(
        default=120.0, gt=0, description="Seconds that the server may take until it answers."
    )
    stop_grace_s: float = Field(
        default=5.0, ge=0, description="Seconds that the server may take to end before it is killed."
    )
