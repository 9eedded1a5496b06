"""DeepSeek-V3 on megatron-core."""

from rlcore_megatron.mcore.latent_bridge import LatentBridge


class DeepseekBridge(LatentBridge):
    """`DeepseekV3ForCausalLM`."""
