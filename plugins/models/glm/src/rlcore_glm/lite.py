"""GLM-4.7-Flash on megatron-core: the attention of DeepSeek-V3, and GLM-4.5's experts."""

from rlcore_megatron.mcore.bridges.latent_bridge import LatentBridge


class GlmMoeLiteBridge(LatentBridge):
    """`Glm4MoeLiteForCausalLM`."""
