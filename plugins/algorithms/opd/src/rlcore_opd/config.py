"""The settings of the parts."""

from typing import ClassVar, Literal

from pydantic import Field

from rlcore import AdvantageConfig, Input, LossConfig, TopTokens


class ZeroConfig(AdvantageConfig):
    """Settings of the advantage `zero`: none."""

    idle: ClassVar[bool] = True


class DistillConfig(LossConfig):
    """Settings of the loss `distill`."""

    reads_advantages: ClassVar[bool] = False
    needs: ClassVar[frozenset[Input]] = frozenset({Input.TEACHER_LOG_PROBS})

    top_k: int = Field(
        0,
        ge=0,
        le=4096,
        description="tokens compared in each position, all others as one; 0: the sampled one",
    )
    top_of: Literal["teacher", "student"] = Field(
        "teacher", description="whose likeliest tokens are compared where --loss.top-k is above 0"
    )

    @property
    def top_tokens(self) -> TopTokens | None:
        return TopTokens(count=self.top_k, of=self.top_of) if self.top_k else None
