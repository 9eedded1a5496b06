"""Routing replay: tokens go to the experts that the engine chose, with weights of the trainer's router.

Trainer and engine round differently, so that a token near the border of two experts takes another one in
each; replayed, both compute one function (https://arxiv.org/abs/2510.11370). The choice reaches a layer with
the parameters of the pack that its tokens lie in, and not by the order of the forwards: a layer that is
computed again in the backward pass, whatever micro-batches came between, gets the same experts again.
"""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from rlcore import ROUTED_EXPERTS, RunError, TrainBatch
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.balance import KIND, balanced_of
from rlcore_megatron.mcore.packs.packing import Pack

_ATTRIBUTE = "rlcore_routes"


class SparseLayer(TransformerLayer):  # type: ignore[misc] # megatron-core is untyped
    """A layer with experts, which tells its router what is to be replayed and balanced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        routes = getattr(kwargs.get("packed_seq_params"), _ATTRIBUTE, None)
        balances = self.config.moe_router_load_balancing_type == KIND
        self.mlp.router.balanced = balanced_of(kwargs.get("packed_seq_params")) if balances else None
        self.mlp.router.replayed = None if routes is None else routes[:, self.layer_number - 1]
        return super().forward(*args, **kwargs)


def keep_routes(part: Pack, config: TransformerConfig) -> Pack:
    """`part`, with the experts of the tokens that this rank's routers see, where layers find them."""
    routes = part.inputs.get(ROUTED_EXPERTS)
    if routes is not None:
        parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
        mine = routes.chunk(parts)[parallel.tensor_rank() if parts > 1 else 0]
        setattr(part.params, _ATTRIBUTE, mine)
    return part


def check_routes(batch: TrainBatch, config: TransformerConfig) -> None:
    """RunError where the column `ROUTED_EXPERTS` is not one of this model's experts."""
    routes = batch.per_input.get(ROUTED_EXPERTS)
    if routes is None:
        raise RunError("The routing shall be replayed, but the batch has no experts that an engine chose.")
    expected = (len(batch.tokens), config.num_layers, config.moe_router_topk)
    if tuple(routes.shape) != expected:
        raise RunError(
            f"The experts that the engine chose are {list(routes.shape)}; expected {list(expected)}: tokens, "
            "layers, experts of a token."
        )
    sparse = torch.tensor(config.moe_layer_freq, dtype=torch.bool)
    sorted_, experts = routes[:, sparse].sort(-1).values, config.num_moe_experts
    if sorted_.numel() and not 0 <= int(sorted_.min()) <= int(sorted_.max()) < experts:
        raise RunError(
            f"The engine chose experts from {int(sorted_.min())} to {int(sorted_.max())}, but the model has "
            f"{experts}."
        )
    if bool((sorted_.diff() == 0).any()):
        raise RunError("The engine chose an expert twice for one token.")
