"""Qwen3ForSequenceClassification, whose head has no bias."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

from sglang.srt.models import qwen3_classification


class Qwen3ForSequenceClassification(qwen3_classification.Qwen3ForSequenceClassification):
    """SGLang's, with the head of the checkpoint."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.score.register_parameter("bias", None)


EntryClass = Qwen3ForSequenceClassification
