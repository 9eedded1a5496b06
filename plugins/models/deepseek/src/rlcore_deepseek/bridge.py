"""DeepSeek-V3 and V3.2 on megatron-core."""

from rlcore_megatron.mcore.bridges.latent_bridge import LatentBridge, SparseBridge


class DeepseekBridge(LatentBridge):
    """`DeepseekV3ForCausalLM`."""


class SparseDeepseekBridge(SparseBridge):
    """`DeepseekV32ForCausalLM`."""

    index_interleaved = False
