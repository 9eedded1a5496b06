"""MiniMax-M2 and M2.5 on megatron-core."""

from typing import ClassVar

from rlcore_megatron.mcore.bridges.moe_bridge import ExpertNames, MoeBridge
from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_megatron.mcore.layers.backend import Linears
from rlcore_megatron.mcore.layers.norms import JointNorm
from rlcore_megatron.mcore.layers.routing import Routing

_MLP = f"{LAYER}.block_sparse_moe."


class MiniMaxNames(ExpertNames):
    """Experts under the names of Mixtral."""

    _MLP_MAPPING: ClassVar = {
        **ExpertNames._MLP_MAPPING,
        "mlp.router.weight": [_MLP + "gate.weight"],
        "mlp.router.expert_bias": [_MLP + "e_score_correction_bias"],
        "mlp.experts.linear_fc1.weight": [
            _MLP + "experts.{expert}.w1.weight",
            _MLP + "experts.{expert}.w3.weight",
        ],
        "mlp.experts.linear_fc2.weight": [_MLP + "experts.{expert}.w2.weight"],
    }


class MiniMaxBridge(MoeBridge):
    """`MiniMaxM2ForCausalLM`."""

    names = MiniMaxNames
    partial_rotary = True

    def routing(self) -> Routing:
        return Routing(top_k=self.hf_config.num_experts_per_tok, score="sigmoid", normalize=True, biased=True)

    def experts(self) -> int:
        return int(self.hf_config.num_local_experts)

    def linears(self) -> Linears:
        return Linears(qk_norm=JointNorm)
