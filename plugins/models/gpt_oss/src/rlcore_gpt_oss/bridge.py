"""gpt-oss on megatron-core: every second layer sees a window, heads have sinks, experts have biases."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.moe_bridge import ExpertNames, MoeBridge
from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_megatron.mcore.layers.backend import Linears, Mixer, self_attention
from rlcore_megatron.mcore.layers.experts import ExpertForm, clamped_glu
from rlcore_megatron.mcore.layers.linear import BiasedLinear
from rlcore_megatron.mcore.layers.routing import Routing

SLIDING, FULL = "sliding_attention", "full_attention"


class GptOssNames(ExpertNames):
    """All experts of a layer in one tensor, with inputs before outputs, and gates between the other values.

    Megatron has outputs before inputs, and the gates before the others.
    """

    joint = True
    _ATTENTION_MAPPING: ClassVar = {
        **ExpertNames._ATTENTION_MAPPING,
        "self_attention.core_attention.sinks": [f"{LAYER}.self_attn.sinks"],
    }
    _MLP_MAPPING: ClassVar = {
        "pre_mlp_layernorm.weight": [f"{LAYER}.post_attention_layernorm.weight"],
        "mlp.router.weight": [f"{LAYER}.mlp.router.weight"],
        "mlp.router.bias": [f"{LAYER}.mlp.router.bias"],
        "mlp.experts.linear_fc1.weight": [f"{LAYER}.mlp.experts.gate_up_proj"],
        "mlp.experts.linear_fc1.bias": [f"{LAYER}.mlp.experts.gate_up_proj_bias"],
        "mlp.experts.linear_fc2.weight": [f"{LAYER}.mlp.experts.down_proj"],
        "mlp.experts.linear_fc2.bias": [f"{LAYER}.mlp.experts.down_proj_bias"],
    }

    def _weight_to_mcore_format(self, name: str, weights: list[Tensor]) -> Tensor:
        whole: Tensor = super()._weight_to_mcore_format(name, weights)
        if ".experts." not in name:
            return whole
        rows = whole.T if whole.ndim == 2 else whole
        return torch.cat([rows[::2], rows[1::2]]) if ".linear_fc1." in name else rows

    def _weight_to_hf_format(self, name: str, whole: Tensor) -> tuple[list[str], list[Tensor]]:
        if ".experts." not in name:
            names, tensors = super()._weight_to_hf_format(name, whole)
            return names, tensors
        rows = torch.stack(whole.chunk(2), dim=1).flatten(0, 1) if ".linear_fc1." in name else whole
        return self._weight_name_mapping_mcore_to_hf(name), [rows.T if rows.ndim == 2 else rows]


class GptOssBridge(MoeBridge):
    """`GptOssForCausalLM`."""

    names = GptOssNames
    kinds = (SLIDING, FULL)
    windows = True
    quantizations = frozenset({"mxfp4"})

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if not hf_config.attention_bias:
            raise ModelError(f"{self.path}: attention_bias false is not supported for gpt_oss.")

    def routing(self) -> Routing:
        top = self.hf_config.num_experts_per_tok
        return Routing(top_k=top, score="softmax", normalize=True, logit_bias=True)

    def experts(self) -> int:
        return int(self.hf_config.num_local_experts)

    def expert_form(self) -> ExpertForm:
        alpha, limit = float(self.hf_config.swiglu_alpha), float(self.hf_config.swiglu_limit)
        return ExpertForm(glu=partial(clamped_glu, alpha=alpha, limit=limit), biased=True)

    def fields(self) -> Mapping[str, Any]:
        return {**super().fields(), "add_qkv_bias": True}

    def linears(self) -> Linears:
        return Linears(projection=BiasedLinear)

    def mixer(self, layer: int) -> Mixer:
        slides = self.hf_config.layer_types[layer] == SLIDING
        window = int(self.hf_config.sliding_window) if slides else None
        return self_attention(self.config, self.shared_rotary, self.linears(), window=window, sinks=True)
