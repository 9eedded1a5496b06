"""The settings of the producer and of the losses."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlcore import Input, LossConfig, ProducerConfig, Prompt, RunConfig, Tokenizer, TrainsOn


class OfflineConfig(ProducerConfig):
    """It has no settings."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES, TrainsOn.PAIRS})

    def check_prompts(self, prompts: Sequence[Prompt], tokenizer: Tokenizer, run: RunConfig) -> None:
        """Encodes the responses of the first ones."""
        from rlcore_offline.responses import ResponseEncoder

        ResponseEncoder.of(tokenizer, run).check(prompts)


class SftConfig(LossConfig):
    """Settings of the loss `sft`: none."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES})


class DpoConfig(LossConfig):
    """Settings of the loss `dpo`."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.REFERENCE_LOG_PROBS})
    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.PAIRS})

    beta: float = Field(0.1, gt=0, le=100, description="how much a log-ratio to the reference counts")
    form: Literal["sigmoid", "ipo"] = Field(
        "sigmoid",
        description="sigmoid: DPO; ipo: squared distance of the log-ratios to 1 / (2 beta)",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="share of pairs taken to be in the wrong order (sigmoid only)"
    )
    length_normalized: bool = Field(
        False, description="the log-ratio of a response is the mean over its tokens, not the sum"
    )

    @model_validator(mode="after")
    def _smoothing_is_of_the_sigmoid(self) -> Self:
        if self.form == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing belongs to the form sigmoid, but the form is ipo")
        return self
