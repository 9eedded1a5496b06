"""What the learner needs of the models; those of `rlcore_megatron.mcore` are such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from rlcore.data.batch import TrainBatch
from rlcore.interfaces.trainer import LossResult, StepResult, TokenOutputs


class Scorer(Protocol):
    """A policy that is not trained here, such as a reference."""

    def forward(
        self,
        batch: TrainBatch,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        top: int = 0,
        chosen: str | None = None,
    ) -> dict[str, Tensor]:
        """`log_probs` fp32 [R], without gradient; with `top` or `chosen` the columns of `Role.forward`."""
        ...


class Policy(Scorer, Protocol):
    """`rlcore_megatron.mcore.role.Role`."""

    def train(
        self,
        batch: TrainBatch,
        loss: Callable[[TokenOutputs, TrainBatch], LossResult],
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
        chosen: str | None = None,
    ) -> StepResult:
        """One optimizer step, or none where something is not finite."""
        ...


class ValueModel(Protocol):
    """`rlcore_megatron.mcore.critic.Critic`."""

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """The value of the state before each response token, fp32 [R], without gradient."""
        ...

    def fit(
        self, batch: TrainBatch, loss: Callable[[Tensor, TrainBatch], LossResult], *, tokens_per_rank: int
    ) -> StepResult:
        """One optimizer step, or none where something is not finite."""
        ...
