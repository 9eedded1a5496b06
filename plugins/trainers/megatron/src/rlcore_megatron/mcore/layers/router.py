"""The router of a layer with experts: megatron's, with the exact rules of the Hugging Face model."""

from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.layers.balance import Balanced, attached, balancing_loss
from rlcore_megatron.mcore.layers.routing import Routing
from rlcore_toolkit import current_device


class Router(TopKRouter):  # type: ignore[misc] # megatron-core is untyped
    """Megatron's own always normalizes the weights of sigmoids, judges a group by another number of experts,
    and needs TransformerEngine for its linear layer."""

    def __init__(self, *, config: TransformerConfig, routing: Routing, pg_collection: Any = None) -> None:
        super().__init__(config=config, pg_collection=pg_collection)
        self.rule = routing
        self.replayed: Tensor | None = None
        """int [T, K]: experts to go to in place of the router's choice; set before each forward."""
        self.balanced: Balanced | None = None
        """The tokens of the balancing loss, where there is one; set before each forward."""
        self.balance_value = 0.0
        self.weight.data = self.weight.data.to(current_device())
        if routing.logit_bias:
            zeros = torch.zeros(config.num_moe_experts, dtype=config.params_dtype, device=current_device())
            self.bias = torch.nn.Parameter(zeros)
            # megatron's mark, as of `weight`
            self.bias.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        if routing.biased:
            # megatron's own flag for it moves the biases after each step, and they are the policy's
            del self.expert_bias
            self.register_buffer("expert_bias", torch.zeros(config.num_moe_experts, device=current_device()))

    def gating(self, hidden: Tensor) -> Tensor:
        """[…, H] → logits […, E], in fp32 where `moe_router_dtype` asks for it."""
        dtype = torch.float32 if self.config.moe_router_dtype == "fp32" else hidden.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return functional.linear(hidden.to(dtype), self.weight.to(dtype), bias)

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """logits […, E] → weights [T, E], zero where an expert was not chosen, and bool [T, E]: who was."""
        logits_TE = logits.view(-1, logits.shape[-1])
        scores_TE = self.rule.scores(logits_TE)
        chosen = self.replayed
        experts_TK = self.rule.choose(scores_TE, self.expert_bias) if chosen is None else chosen.long()
        # a sum of weights is then the same whoever chose them, in whatever order
        experts_TK = experts_TK.sort(-1).values
        weights_TK = self.rule.weigh(scores_TE, experts_TK).to(logits.dtype)
        weights_TE = torch.zeros_like(logits_TE).scatter(1, experts_TK, weights_TK)
        if self.balanced is not None and torch.is_grad_enabled():  # not in a pass that is computed again
            loss, value = balancing_loss(scores_TE, self.rule, self.balanced, self.tp_cp_group)
            self.balance_value += value
            weights_TE = attached(weights_TE, self.config.moe_aux_loss_coeff * loss)
        chosen_TE = torch.zeros_like(logits_TE, dtype=torch.bool).scatter(1, experts_TK, True)
        return weights_TE, chosen_TE
