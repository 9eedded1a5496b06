"""DeepSeek-V3 and V3.2 on megatron-core."""

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.latent_bridge import LatentBridge, SparseBridge
from rlcore_toolkit import indexed_layers


class DeepseekBridge(LatentBridge):
    """`DeepseekV3ForCausalLM`."""


class SparseDeepseekBridge(SparseBridge):
    """`DeepseekV32ForCausalLM`."""

    index_interleaved = False

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if len(indexed_layers(vars(hf_config))) < hf_config.num_hidden_layers:
            raise ModelError(f"{self.path}: layers that share an indexer are not supported for deepseek_v32.")
