"""MiMo on megatron-core: Qwen2 with a layer for multi-token prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore_megatron.mcore.bridges.mtp import MtpForm
from rlcore_megatron.mcore.bridges.names import Names
from rlcore_megatron.mcore.layers.backend import layer_spec
from rlcore_qwen.bridge import QwenBridge

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec

MTP_FORM = MtpForm(
    own="model.mtp_layers.0.",
    inner="model.mtp_layers.0.",
    embedding_norm="token_layernorm",
    hidden_norm="hidden_layernorm",
    joint="input_proj",
    last_norm="final_layernorm",
)


class MimoNames(Names):
    """What joins hidden states and embeddings [H, 2 H] has hidden states first."""

    def _weight_to_mcore_format(self, name: str, weights: list[Tensor]) -> Tensor:
        return _of_halves(name, super()._weight_to_mcore_format(name, weights))

    def _weight_to_hf_format(self, name: str, whole: Tensor) -> tuple[list[str], list[Tensor]]:
        names, tensors = super()._weight_to_hf_format(name, whole)
        return names, [_of_halves(name, tensor) for tensor in tensors]


class MimoBridge(QwenBridge):
    """`MiMoForCausalLM`, whose config.json `rlcore_qwen.adopt` reads as one of Qwen2."""

    names = MimoNames
    mtp_form = MTP_FORM

    def mtp_layer(self) -> ModuleSpec:
        return layer_spec(self.mixer(int(self.hf_config.num_hidden_layers)), self.linears())


def _of_halves(name: str, weight: Tensor) -> Tensor:
    """That matrix with its halves in the other order; other weights as they are."""
    return torch.cat(weight.chunk(2, dim=1)[::-1], dim=1) if name.endswith("eh_proj.weight") else weight
