"""Kimi-Linear on megatron-core: Kimi Delta Attention, every few layers latent attention, and experts."""

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.delta_bridge import DeltaLayers, grouped, ungrouped
from rlcore_megatron.mcore.bridges.latent_bridge import LatentBridge, LatentNames
from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_megatron.mcore.layers.delta_net import DeltaSizes

_DENSE, _SPARSE = ".mlp.", ".block_sparse_moe."
_MIXED = ("in_proj_qkvz.weight", "state.conv_weight")
"""Weights that have rows of queries, keys and values, head by head."""
_COMPUTED = {
    **{"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1},
    "tie_word_embeddings": False,
}
"""What transformers computes, whatever config.json says."""


class KimiLinearNames(LatentNames):
    """As published: experts under the names of Mixtral, a delta net's projections one by one."""

    _ATTENTION_MAPPING: ClassVar = LatentNames._ATTENTION_MAPPING | {
        f"self_attention.{ours}": [f"{LAYER}.self_attn.{name}" for name in theirs.split()]
        for ours, theirs in {
            "in_proj_qkvz.weight": "q_proj.weight k_proj.weight v_proj.weight",
            "in_proj_ba.weight": "b_proj.weight",
            "gates_down.weight": "f_a_proj.weight g_a_proj.weight",
            "rates_up.weight": "f_b_proj.weight",
            "gates_up.weight": "g_b_proj.weight",
            "state.conv_weight": "q_conv1d.weight k_conv1d.weight v_conv1d.weight",
            "state.A_log": "A_log",
            "state.dt_bias": "dt_bias",
            "out_norm.weight": "o_norm.weight",
            "out_proj.weight": "o_proj.weight",
        }.items()
    }
    _MLP_MAPPING: ClassVar = {
        ours: [
            name if ".linear_fc" in ours and "experts" not in ours else name.replace(_DENSE, _SPARSE)
            for name in names
        ]
        for ours, names in {
            **LatentNames._MLP_MAPPING,
            "mlp.experts.linear_fc1.weight": [f"{LAYER}.mlp.experts.{{expert}}.w{n}.weight" for n in (1, 3)],
            "mlp.experts.linear_fc2.weight": [f"{LAYER}.mlp.experts.{{expert}}.w2.weight"],
        }.items()
    }

    def _weight_to_mcore_format(self, name: str, weights: list[Tensor]) -> Tensor:
        if name.endswith(_MIXED):
            whole = grouped([weight.flatten(1) for weight in weights], self.hf_config.linear_num_heads)
        elif name.endswith("gates_down.weight"):
            whole = torch.cat(weights)
        elif name.endswith("A_log"):
            whole = weights[0].flatten()
        else:
            other: Tensor = super()._weight_to_mcore_format(name, weights)
            return other
        return whole.to(self.dtype)

    def _weight_to_hf_format(self, name: str, whole: Tensor) -> tuple[list[str], list[Tensor]]:
        names, heads = self._weight_name_mapping_mcore_to_hf(name), self.hf_config.linear_num_heads
        if name.endswith(_MIXED):
            parts = ungrouped(whole, heads, [self.hf_config.linear_head_dim] * 3)
            return names, [part[:, None] for part in parts] if "conv" in name else parts
        if name.endswith("gates_down.weight"):
            return names, list(whole.chunk(2))
        if name.endswith("A_log"):
            return names, [whole.view(1, 1, heads, 1)]
        names, tensors = super()._weight_to_hf_format(name, whole)
        return names, tensors


class KimiLinearBridge(DeltaLayers, LatentBridge):
    """`KimiLinearForCausalLM`."""

    names = KimiLinearNames
    rotates = False

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        for field, value in _COMPUTED.items():
            if (found := getattr(hf_config, field, value)) != value:
                raise ModelError(f"{self.path}: {field} {found!r} is not supported; {value!r} is.")

    @cached_property
    def _dense(self) -> str:
        """What stands in the names of a dense MLP: transformers 5.24 saves it by that of the experts."""
        return _DENSE if any(_DENSE in name for name in self.source().files.names) else _SPARSE

    def in_files(self, name: str) -> str:
        return super().in_files(name).replace(_DENSE, self._dense)

    def hf_names(self, name: str) -> list[str]:
        return [weight.replace(_DENSE, self._dense) for weight in super().hf_names(name)]

    def delta_sizes(self) -> DeltaSizes:
        heads, size = self.hf_config.linear_num_heads, self.hf_config.linear_head_dim
        return DeltaSizes(
            key_heads=heads,
            value_heads=heads,
            key=size,
            value=size,
            taps=self.hf_config.linear_conv_kernel_dim,
            gate_rank=size,
        )

    def experts(self) -> int:
        return int(self.hf_config.num_experts)
