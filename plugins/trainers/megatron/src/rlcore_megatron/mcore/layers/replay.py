"""Replay: a layer takes over what the engine chose for each token, the experts or the keys of its attention.

Trainer and engine round differently, so that a token near the border of two experts takes another one in
each; replayed, both compute one function (https://arxiv.org/abs/2510.11370), with weights of the trainer's
router. So it is with the keys that an indexer chooses. The choice reaches a layer with the parameters of the
pack that its tokens lie in, and not by the order of the forwards: a layer that is computed again in the
backward pass, whatever micro-batches came between, gets the same again.
"""

from typing import Any

from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from rlcore import INDEXER_TOPK, ROUTED_EXPERTS
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.balance import KIND, balanced_of
from rlcore_megatron.mcore.packs.packing import Pack
from rlcore_megatron.mcore.packs.sequences import Sequences

_ATTRIBUTE = "rlcore_routes"


class SparseLayer(TransformerLayer):  # type: ignore[misc] # megatron-core is untyped
    """A layer with experts, which tells its router what is to be replayed and balanced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        routes = getattr(kwargs.get("packed_seq_params"), _ATTRIBUTE, None)
        balances = self.config.moe_router_load_balancing_type == KIND
        self.mlp.router.balanced = balanced_of(kwargs.get("packed_seq_params")) if balances else None
        self.mlp.router.replayed = None if routes is None else routes[:, self.layer_number - 1]
        return super().forward(*args, **kwargs)


def keep_choices(part: Pack, config: TransformerConfig) -> Pack:
    """`part`, with the choices for the tokens that this rank's layers see, where they find them."""
    routes = part.inputs.get(ROUTED_EXPERTS)
    if routes is not None:
        parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
        mine = routes.chunk(parts)[parallel.tensor_rank() if parts > 1 else 0]
        setattr(part.params, _ATTRIBUTE, mine)
    if INDEXER_TOPK in part.inputs:
        Sequences.of(part.params, part.tokens.shape[1]).replayed = part.inputs[INDEXER_TOPK]
    return part
