"""MiMo on megatron-core: Qwen2 with a layer for multi-token prediction."""

import torch
from torch import Tensor

from rlcore_megatron.mcore.bridges.mtp import MtpForm
from rlcore_megatron.mcore.bridges.names import Names
from rlcore_qwen.bridge import QwenBridge

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


def _of_halves(name: str, weight: Tensor) -> Tensor:
    """That matrix with its halves in the other order; other weights as they are."""
    return torch.cat(weight.chunk(2, dim=1)[::-1], dim=1) if name.endswith("eh_proj.weight") else weight
