"""The policy's model as it was before its training: without its adapter, or with the first one."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlcore import TrainBatch

if TYPE_CHECKING:
    from rlcore_megatron.mcore.role.role import Role


class BorrowedRole:
    """A frozen role that computes with the weights of a policy's model, and with no adapter or another one.

    Costs no memory but that of the adapter. Collective, as `Role` is.
    """

    def __init__(self, policy: "Role", first: Sequence[Tensor] = ()) -> None:
        """`first`: the values of its adapter, as `adapter_values` made them; empty: it has none."""
        self._view, self._first = copy.copy(policy), first
        self._view.replayed = frozenset()  # the choice was the policy's

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Columns as `Role.forward` gives them."""
        with self._replaced() if self._first else self._off():
            return self._view.forward(batch, **options)

    @contextmanager
    def _off(self) -> Iterator[None]:
        adapters = [layer.adapter for layer in self._view.built.adapted]
        for adapter in adapters:
            adapter.is_on = False
        try:
            yield
        finally:
            for adapter in adapters:
                adapter.is_on = True

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        layers = self._view.built.adapted
        kept = adapter_values(layers)
        _fill(layers, self._first)
        try:
            yield
        finally:
            _fill(layers, kept)


def adapter_values(layers: Sequence[Any]) -> list[Tensor]:
    """Copies of the parameters of the layers' adapters."""
    return [parameter.detach().clone() for parameter in _parameters(layers)]


@torch.no_grad()
def _fill(layers: Sequence[Any], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(_parameters(layers), values, strict=True):
        parameter.copy_(value)


def _parameters(layers: Sequence[Any]) -> list[nn.Parameter]:
    return [parameter for layer in layers for parameter in layer.adapter.parameters()]
