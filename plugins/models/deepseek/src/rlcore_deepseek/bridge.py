"""DeepSeek-V3 on megatron-core."""

from rlcore.megatron.latent_bridge import LatentBridge


class DeepseekBridge(LatentBridge):
    """`DeepseekV3ForCausalLM`."""
