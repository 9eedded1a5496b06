"""`Critic`: a role with one value a token in place of the logits."""

import torch
from torch import Tensor

from rlcore import StepResult, TrainBatch, ValueFunction
from rlcore_megatron.mcore.packs.narrowing import whole
from rlcore_megatron.mcore.packs.packing import Pack
from rlcore_megatron.mcore.role.role import Role
from rlcore_toolkit import Logits, loss_sums


class Critic(Role):
    """A model whose head gives the value of the state before each response token.

    The head is zero at first, unless the model's directory holds one. Collective, as `Role` is.
    """

    value_head = True

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """fp32 [sum(R_i)] on the CPU, in `batch`'s order, without gradients; on every rank."""
        bins = self._plan(batch, tokens_per_rank)

        def score(output: Logits, part: Pack) -> tuple[Tensor, Tensor]:
            return torch.zeros((), device=part.tokens.device), _values(output, part)

        with torch.no_grad():
            columns = self._run(batch, bins, score, forward_only=True)
        return self._column(columns, batch, bins)

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """One optimizer step, as `Role.train` takes it."""

        def score(output: Logits, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
            values = _values(output, part)
            return loss_sums(values, lambda: loss(values, part.batch))

        return self._fit(batch, tokens_per_rank, score)


def _values(output: Logits, part: Pack) -> Tensor:
    assert isinstance(output, Tensor), "a value head has nothing to defer"
    return whole(output[: part.targets.numel(), 0], part)
