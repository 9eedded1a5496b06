"""`DeltaLayers`: a base for families with gated delta nets in some layers, and the order of their rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Mixer, delta_net
from rlcore_megatron.mcore.layers.delta_net import DeltaSizes

LINEAR, FULL = "linear_attention", "full_attention"


class DeltaLayers(MBridge):
    """Layers of both kinds, by `layer_types`. The attention is that of the next base."""

    kinds = (LINEAR, FULL)

    def delta_sizes(self) -> DeltaSizes:
        """Those of a delta net, from config.json."""
        raise NotImplementedError

    def mixer(self, layer: int) -> Mixer:
        is_linear = self.hf_config.layer_types[layer : layer + 1] == [LINEAR]
        return delta_net(self.delta_sizes()) if is_linear else super().mixer(layer)


def grouped(parts: Sequence[Tensor], groups: int) -> Tensor:
    """The rows of several tensors, group by group."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)


def ungrouped(weight: Tensor, groups: int, widths: Sequence[int]) -> list[Tensor]:
    """The way back: `widths` rows of each tensor in each group."""
    parts = weight.unflatten(0, (groups, -1)).split(list(widths), dim=1)
    return [part.flatten(0, 1) for part in parts]
