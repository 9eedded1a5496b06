"""The balancing loss of routers, taken of each sequence by itself, so that no division of a batch changes it.

DeepSeek-V3's complementary sequence-wise loss (https://arxiv.org/abs/2412.19437, eq. 17 to 20), over the
tokens that are trained on. Of a sample with T of them, E experts and K a token:

    f_e = E / (K T) · Σ_t [e is one of the K best scores of t]     P_e = 1 / T · Σ_t s_te / Σ_e' s_te'

and the loss is coefficient / B · Σ over layers and samples of Σ_e f_e P_e, where B counts the samples of the
whole mini-batch. f has no gradient. Megatron's own losses over a micro-batch or a growing average of some
would depend on which samples share a micro-batch. Shape suffixes: N tokens, B samples, E experts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlcore import TrainBatch
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.routing import Routing
from rlcore_megatron.mcore.packs.packing import Pack
from rlcore_toolkit import current_device

KIND = "seq_aux_loss"
"""megatron's name of such a loss."""
_ATTRIBUTE = "rlcore_balance"


@dataclass(frozen=True)
class Balanced:
    """The tokens of a pack that a rank's routers balance.

    `places` int64 [N]: where they stand among the tokens that its routers see; `samples` [N]: which sample of
    the pack each belongs to. `lengths` [B]: how many of them a sample has on all ranks together. `scale`: one
    over the samples of the mini-batch.
    """

    places: Tensor
    samples: Tensor
    lengths: Tensor
    scale: float


def scale_of(batch: TrainBatch) -> float:
    """One over the samples of the mini-batch, of which `batch` is this rank's share, that are trained on."""
    count = (_lengths(batch) > 0).sum().to(current_device())
    if parallel.data_size() > 1:
        dist.all_reduce(count, group=parallel.data_group())
    return 1.0 / max(1, int(count))


def keep_balanced(part: Pack, config: TransformerConfig, scale: float) -> Pack:
    """`part`, with what its routers balance where layers find it."""
    live_N = part.batch.per_token["loss_mask"] > 0
    samples_N = torch.repeat_interleave(part.batch.response_lengths)
    if part.kept is not None:
        live_N, samples_N = live_N[part.kept], samples_N[part.kept]
    parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
    # Under sequence parallelism a router sees one part of the pack, while rows count from its begin.
    own = part.tokens.shape[1] // parts
    places_N = part.rows - own * (parallel.tensor_rank() if parts > 1 else 0)
    here_N = live_N & (places_N >= 0) & (places_N < own)
    balanced = Balanced(places_N[here_N], samples_N[here_N], _lengths(part.batch), scale)
    setattr(part.params, _ATTRIBUTE, balanced)
    return part


def balanced_of(params: Any) -> Balanced | None:
    """What `keep_balanced` kept with the parameters of a pack."""
    return cast(Balanced | None, getattr(params, _ATTRIBUTE, None))


def balancing_loss(scores_TE: Tensor, rule: Routing, balanced: Balanced, group: Any) -> tuple[Tensor, float]:
    """This rank's share of the loss, with gradient and without the coefficient, and the value of all of it.

    `scores_TE` fp32: of every token that the router sees. `group`: the ranks that hold parts of the pack.
    """
    scores_NE = scores_TE.index_select(0, balanced.places)
    chosen_NE = torch.zeros_like(scores_NE).scatter(1, scores_NE.topk(rule.top_k, dim=-1).indices, 1.0)
    shares_NE = scores_NE / scores_NE.sum(-1, keepdim=True)
    shape = (len(balanced.lengths), scores_TE.shape[1])
    length_B1 = balanced.lengths.clamp(min=1)[:, None]
    chosen_BE = scores_NE.new_zeros(shape).index_add_(0, balanced.samples, chosen_NE)
    share_BE = scores_NE.new_zeros(shape).index_add(0, balanced.samples, shares_NE) / length_B1
    # f_e (without gradient) and P_e above; `share_BE` is this rank's part of P, a sum over its own tokens.
    # The value is of all ranks together; each differentiates its own tokens, and gradients are summed.
    sums = torch.stack([chosen_BE, share_BE.detach()])
    if dist.get_world_size(group) > 1:
        dist.all_reduce(sums, group=group)
    fraction_BE = sums[0] * shape[1] / (rule.top_k * length_B1)
    value = float((fraction_BE * sums[1]).sum()) * balanced.scale
    return (fraction_BE * share_BE).sum() * balanced.scale, value


def attached(weights: Tensor, loss: Tensor) -> Tensor:
    """`weights` as they are; in the backward pass `loss` gets the gradient 1, as if it were in the total."""
    # The loss goes no other way through the model: the router's output is all that the layer passes on.
    return cast(Tensor, _Attached.apply(weights, loss))  # type: ignore[no-untyped-call] # torch leaves it so


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, loss: Tensor) -> Tensor:
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones((), dtype=torch.float32)


def take_value(chunks: Sequence[nn.Module]) -> Tensor:
    """Sum over the routers of this rank's layers since the last call, float64: of the loss, coefficient 1."""
    total = torch.zeros((), dtype=torch.float64, device=current_device())
    modules: Iterator[Any] = (module for chunk in chunks for module in chunk.modules())
    for router in (module for module in modules if hasattr(module, "balance_value")):
        total += router.balance_value
        router.balance_value = 0.0
    return total


def _lengths(batch: TrainBatch) -> Tensor:
    """int64 [B]: the tokens of each sample that are trained on."""
    samples_R = torch.repeat_interleave(batch.response_lengths)
    live_R = batch.per_token["loss_mask"] > 0
    zero_B = torch.zeros_like(batch.response_lengths)
    return zero_B.index_add(0, samples_R, live_R.to(zero_B.dtype))
