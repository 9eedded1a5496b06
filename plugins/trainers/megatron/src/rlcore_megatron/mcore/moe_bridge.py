"""`MoeBridge`: a base for families whose layers, or some of them, have experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mbridge.core import LLMBridge
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from rlcore import ConfigError, expert_width
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.backend import block_spec, layer_spec
from rlcore_megatron.mcore.bridge import MBridge
from rlcore_megatron.mcore.latent import Latent
from rlcore_megatron.mcore.routing import Routing


class ExpertNames(LLMBridge):  # type: ignore[misc] # mbridge is untyped
    """mbridge's weight layouts under the names that Qwen3-MoE, GLM-4.5 and DeepSeek-V3 share.

    Experts are named one by one, as in the published files; transformers joins them while it loads.
    """

    _MLP_MAPPING: ClassVar = {
        **LLMBridge._MLP_MAPPING,
        "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
        "mlp.router.weight": ["model.layers.{layer_number}.mlp.gate.weight"],
        "mlp.router.expert_bias": ["model.layers.{layer_number}.mlp.gate.e_score_correction_bias"],
        "mlp.experts.linear_fc1.weight": [
            "model.layers.{layer_number}.mlp.experts.{expert}.gate_proj.weight",
            "model.layers.{layer_number}.mlp.experts.{expert}.up_proj.weight",
        ],
        "mlp.experts.linear_fc2.weight": [
            "model.layers.{layer_number}.mlp.experts.{expert}.down_proj.weight"
        ],
        "mlp.shared_experts.linear_fc1.weight": [
            "model.layers.{layer_number}.mlp.shared_experts.gate_proj.weight",
            "model.layers.{layer_number}.mlp.shared_experts.up_proj.weight",
        ],
        "mlp.shared_experts.linear_fc2.weight": [
            "model.layers.{layer_number}.mlp.shared_experts.down_proj.weight"
        ],
    }

    def _weight_name_mapping_mlp(self, name: str) -> list[str]:
        layer, expert = name.split(".")[2], name.rpartition("weight")[2]
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

    def sparse_layers(self) -> Sequence[bool]:
        """Of each layer of the model, whether it has experts."""
        raise NotImplementedError

    def experts(self) -> int:
        """Experts of a layer, without the shared ones."""
        raise NotImplementedError

    def expert_width(self) -> int:
        """Inner size of an expert."""
        return expert_width(self.hf_config.to_dict())

    def shared_size(self) -> int | None:
        """Inner size of the experts that every token passes through, together; None where there are none."""
        return None

    def fields(self) -> Mapping[str, Any]:
        """Further fields of the family's TransformerConfig."""
        return {}

    def latent(self) -> Latent | None:
        """Sizes of the attention, where it is a latent one."""
        return None

    def family(self, model_type: str) -> type[Any]:
        fields = {**self._fields_of_experts(), **self.fields()}

        def build_config(inner: Any) -> Any:
            return inner._build_base_config(**fields)

        return type(self.names.__name__, (self.names,), {"_build_config": build_config})

    def layers(self, vp_stage: int | None) -> TransformerBlockSubmodules:
        return block_spec(
            self.config,
            self.rotary(),
            self.linears(),
            vp_stage,
            latent=self.latent(),
            routing=self.routing(),
        )

    def _fields_of_experts(self) -> dict[str, Any]:
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

    def _check_layout(self) -> None:
        super()._check_layout()
        ranks, experts = parallel.expert_size(), self.experts()
        if experts % ranks:
            raise ConfigError(
                f"--megatron.expert-model-parallel-size {ranks} does not divide the {experts} experts of "
                f"{self.path}."
            )
        cut, width = parallel.expert_tensor_size(), self.expert_width()
        if width % cut:
            raise ConfigError(
                f"--megatron.expert-tensor-parallel-size {cut} does not divide the size {width} of an expert "
                f"of {self.path}."
            )
        shared, tensor = self.shared_size() or 0, parallel.tensor_size()
        if shared % tensor:
            raise ConfigError(
                f"--megatron.tensor-model-parallel-size {tensor} does not divide the shared experts' size "
                f"{shared} of {self.path}."
            )


class SharedExpertsBridge(MoeBridge):
    """Experts as DeepSeek-V3 and GLM-4.5 have them: dense layers first, then shared and routed experts.

    Behind the last layer there may be one for multi-token prediction, with experts.
    """

    has_mtp = True

    def mtp_layer(self) -> ModuleSpec:
        return layer_spec(
            self.config, self.rotary(), self.linears(), latent=self.latent(), routing=self.routing()
        )

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
        return [number >= config.first_k_dense_replace for number in range(config.num_hidden_layers)]

    def experts(self) -> int:
        return int(self.hf_config.n_routed_experts)

    def shared_size(self) -> int:
        return self.expert_width() * int(self.hf_config.n_shared_experts)
