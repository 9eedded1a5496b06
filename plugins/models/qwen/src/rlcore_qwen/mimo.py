"""MiMo on megatron-core: Qwen2 with a layer for multi-token prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore_megatron.mcore.bridges.mtp import MtpForm
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


class MimoBridge(QwenBridge):
    """`MiMoForCausalLM`, whose config.json `rlcore_qwen.adopt` reads as one of Qwen2."""

    mtp_form = MTP_FORM

    def family(self, model_type: str) -> type[Any]:
        family = super().family(model_type)

        def to_mcore(inner: Any, name: str, weights: list[Tensor]) -> Tensor:
            return _of_halves(name, family._weight_to_mcore_format(inner, name, weights))

        def to_hf(inner: Any, name: str, whole: Tensor) -> tuple[list[str], list[Tensor]]:
            names, tensors = family._weight_to_hf_format(inner, name, whole)
            return names, [_of_halves(name, tensor) for tensor in tensors]

        methods = {"_weight_to_mcore_format": to_mcore, "_weight_to_hf_format": to_hf}
        return type(family.__name__, (family,), methods)

    def mtp_layer(self) -> ModuleSpec:
        return layer_spec(self.mixer(int(self.hf_config.num_hidden_layers)), self.linears())


def _of_halves(name: str, weight: Tensor) -> Tensor:
    """What joins hidden states and embeddings [H, 2 H], in the other order: MiMo has hidden states first."""
    return torch.cat(weight.chunk(2, dim=1)[::-1], dim=1) if name.endswith("eh_proj.weight") else weight
