"""What Qwen3-Next and Qwen3.5 share: gated delta nets, every few layers a gated attention."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.delta_bridge import DeltaLayers, grouped, ungrouped
from rlcore_megatron.mcore.bridges.moe_bridge import ExpertNames
from rlcore_megatron.mcore.bridges.mtp import QWEN
from rlcore_megatron.mcore.bridges.names import LAYER, Names
from rlcore_megatron.mcore.layers.delta_net import DeltaSizes
from rlcore_qwen.moe import QwenExperts


class DeltaNames(Names):
    """The names of the delta nets, and the order of rows with gates.

    A family adds those of `in_proj_qkvz` and `in_proj_ba`: one name where the file has the rows in
    megatron's order, two where it has each of [q k v] and z, b and a, head after head.
    """

    _ATTENTION_MAPPING: ClassVar = {
        **Names._ATTENTION_MAPPING,
        "self_attention.state.conv_weight": [f"{LAYER}.linear_attn.conv1d.weight"],
        "self_attention.state.A_log": [f"{LAYER}.linear_attn.A_log"],
        "self_attention.state.dt_bias": [f"{LAYER}.linear_attn.dt_bias"],
        "self_attention.out_norm.weight": [f"{LAYER}.linear_attn.norm.weight"],
        "self_attention.out_proj.weight": [f"{LAYER}.linear_attn.out_proj.weight"],
    }
    _OTHER_MAPPING: ClassVar = {"input_layernorm.weight": [f"{LAYER}.input_layernorm.weight"]}

    def _weight_to_mcore_format(self, name: str, weights: list[Tensor]) -> Tensor:
        parts, groups = weights, delta_sizes(self.hf_config).key_heads
        if name.endswith("linear_qkv.weight"):
            parts = [*halves_of_heads(weights[0], self.hf_config.num_attention_heads), *weights[1:]]
            groups = self.hf_config.num_key_value_heads
        elif name.endswith("state.conv_weight"):
            parts = self._of_heads(weights[0][:, 0])
        elif name.endswith("in_proj_qkvz.weight") and len(weights) == 2:
            parts = [*self._of_heads(weights[0]), weights[1]]
        elif len(weights) == 1 or not name.endswith("in_proj_ba.weight"):
            whole: Tensor = super()._weight_to_mcore_format(name, weights)
            return whole
        return grouped(parts, groups).to(self.dtype)

    def _weight_to_hf_format(self, name: str, whole: Tensor) -> tuple[list[str], list[Tensor]]:
        names = self._weight_name_mapping_mcore_to_hf(name)
        sizes = delta_sizes(self.hf_config)
        values = sizes.group * sizes.value
        if name.endswith("linear_qkv.weight"):
            config = self.hf_config
            size, groups = config.head_dim, config.num_key_value_heads
            queries = config.num_attention_heads // groups * size
            query, gate, key, value = ungrouped(whole, groups, [queries, queries, size, size])
            both = torch.stack([x.unflatten(0, (-1, size)) for x in (query, gate)], dim=1)
            return names, [both.flatten(0, 2), key, value]
        if name.endswith("state.conv_weight"):
            flat = torch.cat(ungrouped(whole, sizes.key_heads, [sizes.key, sizes.key, values]))
            return names, [flat[:, None]]
        if name.endswith("in_proj_qkvz.weight") and len(names) == 2:
            *mixed, gate = ungrouped(whole, sizes.key_heads, [sizes.key, sizes.key, values, values])
            return names, [torch.cat(mixed), gate]
        if name.endswith("in_proj_ba.weight") and len(names) == 2:
            return names, ungrouped(whole, sizes.key_heads, [sizes.group, sizes.group])
        names, tensors = super()._weight_to_hf_format(name, whole)
        return names, tensors

    def _of_heads(self, weight: Tensor) -> list[Tensor]:
        """Rows of all queries, all keys, all values → three tensors."""
        sizes = delta_sizes(self.hf_config)
        keys = sizes.key_heads * sizes.key
        return list(weight.split([keys, keys, sizes.value_heads * sizes.value]))


class DeltaExpertNames(DeltaNames, ExpertNames):
    """With the names of experts and of a shared expert that has a gate."""

    _MLP_MAPPING: ClassVar = {
        **ExpertNames._MLP_MAPPING,
        "mlp.shared_experts.linear_fc1.weight": [
            f"{LAYER}.mlp.shared_expert.gate_proj.weight",
            f"{LAYER}.mlp.shared_expert.up_proj.weight",
        ],
        "mlp.shared_experts.linear_fc2.weight": [f"{LAYER}.mlp.shared_expert.down_proj.weight"],
        "mlp.shared_experts.gate_weight": [f"{LAYER}.mlp.shared_expert_gate.weight"],
    }


class DeltaBridge(DeltaLayers):
    """Every few layers a gated attention."""

    partial_rotary = True
    carried = ("model.visual.", QWEN.own)
    mtp_form = QWEN

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if hf_config.attention_bias:
            raise ModelError(f"{self.path}: attention_bias is not supported for {hf_config.model_type}.")
        if not getattr(hf_config, "attn_output_gate", True):
            raise ModelError(f"{self.path}: attn_output_gate false is not supported; true is.")
        keys, values = hf_config.linear_num_key_heads, hf_config.linear_num_value_heads
        if values % keys:
            raise ModelError(
                f"{self.path}: linear_num_key_heads {keys} does not divide linear_num_value_heads {values}."
            )

    def delta_sizes(self) -> DeltaSizes:
        return delta_sizes(self.hf_config)

    def fields(self) -> Mapping[str, Any]:
        return {
            **super().fields(),
            "qk_layernorm": True,
            "layernorm_zero_centered_gamma": True,
            "attention_output_gate": True,
        }


class DeltaMoeBridge(DeltaBridge, QwenExperts):
    """With routed experts, and a shared one that has a gate."""

    names = DeltaExpertNames

    def fields(self) -> Mapping[str, Any]:
        return {**super().fields(), "moe_shared_expert_gate": True}

    def shared_size(self) -> int:
        return int(self.hf_config.shared_expert_intermediate_size)


def delta_sizes(config: PretrainedConfig) -> DeltaSizes:
    """The delta net's, from config.json."""
    return DeltaSizes(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key=config.linear_key_head_dim,
        value=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
    )


def halves_of_heads(weight: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Rows [first | second] of each head → the first halves of all heads, and the second ones."""
    first, second = weight.unflatten(0, (heads, 2, -1)).unbind(1)
    return first.flatten(0, 1), second.flatten(0, 1)
