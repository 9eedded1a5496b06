"""A sequence classifier: what transformers says of texts."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from rlcore import CLASSIFIER_HEAD, ModelError, torch_dtype
from rlcore_local.loading import context_length_of, device_named, load_config, load_tokenizer, place
from rlcore_local.settings import Settings
from rlcore_local.weights import load_full
from rlcore_machine import compute_threads


class Classifier:
    """The model, and the tokenizer where it has one. One thread makes it and calls it."""

    def __init__(self, settings: Settings) -> None:
        compute_threads(settings.threads)
        self.model = _load(settings)
        place(self.model, device_named(settings.device))
        self.context_length = context_length_of(self.model.config, settings.context_length)
        self.tokenizer = load_tokenizer(settings.model_path)
        self.vocab_size: int = self.model.config.get_text_config().vocab_size
        self._pad: int | None = self.model.config.get_text_config().pad_token_id
        # transformers finds the end of a text by the padding behind it.
        self._max_batch = 1 if self._pad is None else settings.max_batch

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
        """The texts as `scores` takes them."""
        for start in range(0, len(texts), self._max_batch):
            yield texts[start : start + self._max_batch]

    @torch.inference_mode()
    def scores(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The scores of each text of a batch, one for each label: of what stands where its last token, other
        than the padding token, is. The same call gives the same bits."""
        width = max(map(len, texts))
        pad = 0 if self._pad is None else self._pad
        device = self.model.device
        ids = torch.tensor([[*text, *[pad] * (width - len(text))] for text in texts], device=device)
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=device)
        scores: list[list[float]] = self.model(ids, attention_mask=mask, use_cache=False).logits.tolist()
        return scores


def _load(settings: Settings) -> PreTrainedModel:
    path, models = settings.model_path, AutoModelForSequenceClassification
    config = load_config(path)
    known: Any = models._model_mapping.get(type(config), object)
    if not (issubclass(known, GenericForSequenceClassification) and known.__name__ in config.architectures):
        raise ModelError(
            f"--model-path {path}: the local engine cannot serve {config.architectures[0]}; of reward models "
            f"it serves transformers' decoders (Qwen3{CLASSIFIER_HEAD}, …)."
        )
    return load_full(models, path, config, torch_dtype(settings.dtype))[0]
