"""Kind `trainer`: what a loss sees of its models, what it gives back, what an optimizer step reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TokenOutputs:
    """The model's view of the n response tokens of a micro-batch, in the micro-batch's order.

    `log_probs` fp32 [n], with gradient: of the distribution divided by the sampling temperature.
    `entropy` fp32 [n], where it was asked for; with gradient only where that was asked for too.
    `chosen` fp32 [n, K], with gradient: log-probs of K tokens in the place of each, where they were named.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    chosen: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """`total`: scalar Σ weight · loss, with its denominators already in the weights: never divided again.

    `metrics`: scalar sums, added over micro-batches and data-parallel ranks.
    """

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step, the same on every rank.

    `loss`, `metrics`: sums over micro-batches and data-parallel ranks. `grad_norm`: before clipping. `lr`:
    of this step. `finite` is False where the loss or the norm is not finite: then nothing was changed.
    `balance`: the routers' balancing loss with a coefficient of 1, summed over layers, where there is one.
    """

    loss: float
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    finite: bool
    balance: float | None = None


def balance_metric(role: str, results: Sequence[StepResult]) -> dict[str, float]:
    """`<role>/router_balance`, the mean of the steps; nothing where routers are not balanced."""
    found = [result.balance for result in results if result.balance is not None]
    return {f"{role}/router_balance": sum(found) / len(found)} if found else {}


class Trainer(Protocol):
    """Made from its config, in the driver and in each train worker."""

    def check_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The library's own fields, as the user gave them, in their types; ConfigError for one it has not."""
        ...
