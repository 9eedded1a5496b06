"""The output layer: from hidden states to log-probs, a chunk of the vocabulary's logits at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore import ModelError
from rlcore_toolkit import MOST_LOGITS, MOST_ON_HOST, HiddenRows, Logits, current_device

After = Callable[[Tensor], Tensor]
"""From what the output layer gives, [n, V], to the logits: a scale, a soft cap."""


class Head:
    """The output layer of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.layer: Any = model.get_output_embeddings()
        self.most = MOST_ON_HOST if current_device().type == "cpu" else MOST_LOGITS
        self._after = _after(model)

    def logits(self, hidden_nH: Tensor) -> Logits:
        """The logits of these hidden states; where they are many, what makes them a chunk at a time."""
        matrix_VH: Tensor = self.layer.weight
        is_plain = getattr(self.layer, "bias", None) is None
        if is_plain and len(hidden_nH) * len(matrix_VH) > self.most:
            return HiddenRows(hidden=hidden_nH, matrix=matrix_VH, after=self._after)
        logits_nV: Tensor = self.layer(hidden_nH)
        return logits_nV if self._after is None else self._after(logits_nV)


def _after(model: PreTrainedModel) -> After | None:
    """What the model's forward does to the output of its last layer; None: nothing.

    It is asked of that forward itself, in which the decoder gives that output and the layer changes nothing.
    """
    decoder, layer, forward = model.base_model, model.get_output_embeddings(), type(model).forward

    def after(outputs_nV: Tensor) -> Tensor:
        states = _States(outputs_nV[None])
        with _instead(decoder, lambda *_, **__: states), _instead(layer, lambda outputs: outputs):
            logits: Tensor = forward(model, input_ids=torch.zeros(1, 1, dtype=torch.int64)).logits[0]
        return logits

    probe = torch.linspace(-40, 40, 64).view(8, 8)
    try:
        outputs = after(probe)
        if outputs.is_meta:
            raise TypeError("it computes with other weights")
    except Exception as error:  # whatever a forward says without what it reads
        raise ModelError(
            f"--model: the forward of {type(model).__name__} is more than its decoder and an output layer "
            f"({error}), so the trainer 'fsdp' cannot train it."
        ) from error
    return None if torch.equal(outputs, probe) else after


@contextmanager
def _instead(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Within, `module` computes this."""
    own, module.forward = module.forward, forward
    try:
        yield
    finally:
        module.forward = own


class _States:
    """What a decoder returns, of which only the hidden states are there."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor:
        return self.last_hidden_state
