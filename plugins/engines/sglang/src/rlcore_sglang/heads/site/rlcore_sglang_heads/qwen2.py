"""Qwen2ForSequenceClassification, whose head has no bias."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

from sglang.srt.models import qwen2_classification


class Qwen2ForSequenceClassification(qwen2_classification.Qwen2ForSequenceClassification):
    """SGLang's, with the head of the checkpoint."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.score.register_parameter("bias", None)


EntryClass = Qwen2ForSequenceClassification
