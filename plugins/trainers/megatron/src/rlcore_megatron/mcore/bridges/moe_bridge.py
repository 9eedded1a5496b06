"""`MoeBridge`: a base for families whose layers, or some of them, have experts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.bridges.mtp import DEEPSEEK
from rlcore_megatron.mcore.bridges.names import LAYER, Names
from rlcore_megatron.mcore.bridges.transfer import expert_number
from rlcore_megatron.mcore.layers.backend import Mixture
from rlcore_megatron.mcore.layers.experts import ExpertForm
from rlcore_megatron.mcore.layers.routing import Routing
from rlcore_toolkit import expert_width


class ExpertNames(Names):
    """Those that Qwen3-MoE, GLM-4.5 and DeepSeek-V3 share.

    Experts are named one by one, as in the published files; transformers joins them while it loads.
    """

    _MLP_MAPPING: ClassVar = {
        **Names._MLP_MAPPING,
        "pre_mlp_layernorm.weight": [f"{LAYER}.post_attention_layernorm.weight"],
        "mlp.router.weight": [f"{LAYER}.mlp.gate.weight"],
        "mlp.router.expert_bias": [f"{LAYER}.mlp.gate.e_score_correction_bias"],
        "mlp.experts.linear_fc1.weight": [
            f"{LAYER}.mlp.experts.{{expert}}.gate_proj.weight",
            f"{LAYER}.mlp.experts.{{expert}}.up_proj.weight",
        ],
        "mlp.experts.linear_fc2.weight": [f"{LAYER}.mlp.experts.{{expert}}.down_proj.weight"],
        "mlp.shared_experts.linear_fc1.weight": [
            f"{LAYER}.mlp.shared_experts.gate_proj.weight",
            f"{LAYER}.mlp.shared_experts.up_proj.weight",
        ],
        "mlp.shared_experts.linear_fc2.weight": [f"{LAYER}.mlp.shared_experts.down_proj.weight"],
    }
    joint: ClassVar[bool] = False
    """Whether files have the experts of a layer in one tensor, whose first axis counts them."""

    def _weight_name_mapping_mlp(self, name: str) -> list[str]:
        layer, (_, expert) = name.split(".")[2], expert_number(name)
        key = next(key for key in self._MLP_MAPPING if key in name)
        return [hf.format(layer_number=layer, expert=expert) for hf in self._MLP_MAPPING[key]]


class MoeBridge(MBridge):
    """A family says how tokens choose experts, which layers have them, and how large they are.

    Experts are divided by --megatron.expert-model-parallel-size, and each of them is cut by
    --megatron.expert-tensor-parallel-size.
    """

    names: ClassVar[type[Any]] = ExpertNames

    def routing(self) -> Routing:
        """The rule of the router."""
        raise NotImplementedError

    def expert_form(self) -> ExpertForm:
        """What an expert computes."""
        return ExpertForm()

    def sparse_layers(self) -> Sequence[bool]:
        """Whether each layer of the model has experts."""
        return [True] * int(self.hf_config.num_hidden_layers)

    def experts(self) -> int:
        """Experts of a layer, without the shared ones."""
        raise NotImplementedError

    def expert_width(self) -> int:
        """Inner size of an expert."""
        return expert_width(self.hf_config.to_dict())

    def shared_size(self) -> int | None:
        """Inner size of the experts that every token passes through, together; None where there are none."""
        return None

    def mixture(self) -> Mixture:
        return Mixture(self.routing(), self.expert_form())

    def fields(self) -> Mapping[str, Any]:
        routing = self.routing()
        return {
            "num_moe_experts": self.experts(),
            "moe_layer_freq": [int(sparse) for sparse in self.sparse_layers()],
            "moe_ffn_hidden_size": self.expert_width(),
            "moe_shared_expert_intermediate_size": self.shared_size(),
            "moe_router_topk": routing.top_k,
            "moe_router_score_function": routing.score,
            "moe_router_pre_softmax": True,  # megatron asks for it with one expert a token
            "moe_router_dtype": "fp32" if routing.score == "sigmoid" else None,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_token_dispatcher_type": "alltoall",
            "expert_tensor_parallel_size": parallel.expert_tensor_size(),
        }


class SharedExpertsBridge(MoeBridge):
    """Experts as DeepSeek-V3 and GLM-4.5 have them: dense layers first, then shared and routed experts.

    Behind the last layer there may be one for multi-token prediction, with experts.
    """

    mtp_form = DEEPSEEK

    def routing(self) -> Routing:
        config = self.hf_config
        return Routing(
            top_k=config.num_experts_per_tok,
            score="sigmoid",
            normalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            biased=True,
            groups=config.n_group,
            top_groups=config.topk_group,
        )

    def sparse_layers(self) -> Sequence[bool]:
        config = self.hf_config
        if kinds := getattr(config, "mlp_layer_types", None):
            return [kind == "sparse" for kind in kinds]
        return [number >= config.first_k_dense_replace for number in range(config.num_hidden_layers)]

    def experts(self) -> int:
        return int(self.hf_config.n_routed_experts)

    def shared_size(self) -> int:
        return self.expert_width() * int(self.hf_config.n_shared_experts)
