"""GLM-4.7-Flash on megatron-core: the attention of DeepSeek-V3, and GLM-4.5's experts."""

from collections.abc import Sequence

from rlcore_megatron.mcore.bridges.latent_bridge import LatentBridge


class GlmMoeLiteBridge(LatentBridge):
    """`Glm4MoeLiteForCausalLM`."""

    def sparse_layers(self) -> Sequence[bool]:
        return [kind == "sparse" for kind in self.hf_config.mlp_layer_types]
