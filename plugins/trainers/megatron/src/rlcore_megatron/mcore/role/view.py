"""The policy as a model hook sees it."""

from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from rlcore import ModelView
from rlcore_megatron.mcore.role.build import Built


def view_of(built: Built) -> ModelView:
    """Collective: every rank gets the names of all."""
    parameters: dict[str, nn.Parameter] = {}
    for chunk in built.chunks:
        numbers = built.bridge.numbered(chunk)
        parameters |= {numbers[name]: parameter for name, parameter in chunk.named_parameters()}
    gathered: list[set[str]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, set(parameters))
    return ModelView(modules=tuple(built.chunks), parameters=parameters, names=frozenset().union(*gathered))


def trained(built: Built) -> Iterator[nn.Parameter]:
    """The parameters that have gradients."""
    every = (parameter for chunk in built.chunks for parameter in chunk.parameters())
    return (parameter for parameter in every if parameter.requires_grad)


class Frozen:
    """The parameters that hooks have frozen, kept as they are by hand.

    megatron saves the optimizer state of a parameter for all layers as one tensor, of which no layer may be
    missing. So each is trained, with a gradient of 0, and put back afterwards: weight decay moves it.
    """

    def __init__(self, trainable: Sequence[nn.Parameter]) -> None:
        """`trainable`: what had gradients before the hooks."""
        self._parameters = [parameter for parameter in trainable if not parameter.requires_grad]
        for parameter in self._parameters:
            parameter.requires_grad_()
        self._kept: list[Tensor] = []

    def forget_gradients(self) -> None:
        """After the gradients are summed over ranks, and before their norm is taken."""
        for parameter in self._parameters:
            parameter.main_grad.zero_()  # type: ignore[attr-defined]  # megatron's
        self._kept = [parameter.detach().clone() for parameter in self._parameters]

    def put_back(self) -> None:
        """After the optimizer step."""
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            parameter.data.copy_(kept)
        self._kept = []
