"""The output layer: from hidden states to log-probs, a chunk of the vocabulary's logits at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rlcore import ModelError
from rlcore_toolkit import MOST_LOGITS, HiddenRows, Logits

After = Callable[[Tensor], Tensor]
"""From what the output layer gives, [n, V], to the logits: a scale, a soft cap."""


class Head:
    """The output layer of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.layer: Any = model.get_output_embeddings()
        self._after = _after(model)

    def logits(self, hidden_nH: Tensor) -> Logits:
        """The logits of these hidden states; where they are many, what makes them a chunk at a time."""
        matrix_VH, bias_V = self.layer.weight, getattr(self.layer, "bias", None)
        if bias_V is None and len(hidden_nH) * len(matrix_VH) > MOST_LOGITS:
            return HiddenRows(hidden=hidden_nH, matrix=matrix_VH, after=self._after)
        logits_nV = functional.linear(hidden_nH, matrix_VH, bias_V)
        return logits_nV if self._after is None else self._after(logits_nV)


def _after(model: PreTrainedModel) -> After | None:
    """What the model's forward does to the output of its last layer; None: nothing.

    It is asked of that forward itself, with the decoder and the output layer left out.
    """
    inside = _Given(model.base_model)
    shell = copy.copy(model)
    shell.__dict__["_modules"] = {
        name: inside if module is model.base_model else _Same()
        for name, module in model._modules.items()
        if module is model.base_model or module is model.get_output_embeddings()
    }

    def after(outputs_nV: Tensor) -> Tensor:
        inside.outputs = outputs_nV[None]
        logits: Tensor = shell(input_ids=torch.zeros(1, 1, dtype=torch.int64)).logits[0]
        inside.outputs = None
        return logits

    probe = torch.linspace(-40, 40, 64).view(8, 8)
    try:
        outputs = after(probe)
    except Exception as error:  # whatever a forward says without what it reads
        raise ModelError(
            f"--model: the forward of {type(model).__name__} is more than its decoder and an output layer "
            f"({error}), so the trainer 'fsdp' cannot train it."
        ) from error
    return None if torch.equal(outputs, probe) else after


class _Same(nn.Module):
    """An output layer that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.zeros(0)  # for models that ask for its dtype

    def forward(self, states: Tensor) -> Tensor:
        return states


class _Given(nn.Module):
    """A decoder whose hidden states are `outputs`; its numbers are those of `decoder`."""

    outputs: Tensor | None = None

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.__dict__["decoder_of"] = decoder  # no module of this one

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["decoder_of"], name)
        if isinstance(value, nn.Module):
            raise AttributeError(f"it uses the decoder's {name}")
        return value

    def forward(self, *_: Any, **__: Any) -> Any:
        return _States(self.outputs)


class _States:
    """What a decoder returns, of which only the hidden states are there."""

    def __init__(self, states: Tensor | None) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor | None:
        return self.last_hidden_state
