"""GLM-5 on megatron-core: DeepSeek-V3.2's attention, whose later layers may share the keys that one chose."""

from itertools import takewhile

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.latent_bridge import SparseBridge
from rlcore_megatron.mcore.layers.indexer import IndexUse

FULL, SHARED = "full", "shared"


class GlmSparseBridge(SparseBridge):
    """`GlmMoeDsaForCausalLM`: GLM-5, 5.1 and 5.2."""

    index_interleaved = True

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        for kind in hf_config.indexer_types:
            if kind not in (FULL, SHARED):
                raise ModelError(
                    f"{self.path}: indexer_types {kind!r} is not supported; full and shared are."
                )
        count, layers = len(hf_config.indexer_types), hf_config.num_hidden_layers
        if count != layers:
            raise ModelError(
                f"{self.path}: indexer_types has {count} entries, expected num_hidden_layers ({layers})."
            )

    def index_use(self, layer: int) -> IndexUse:
        kinds = [*self.hf_config.indexer_types, FULL]  # the last is of multi-token prediction
        shared_before = len(list(takewhile(lambda kind: kind == SHARED, reversed(kinds[: layer + 1]))))
        is_shared = kinds[layer + 1 : layer + 2] == [SHARED]
        source = layer - shared_before
        number = kinds[:source].count(FULL)
        return IndexUse(source=source, number=number, is_own=not shared_before, is_shared=is_shared)
