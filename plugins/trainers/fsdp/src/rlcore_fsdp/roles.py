"""The roles: a language model that scores and trains, and a model that gives values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rlcore import LossResult, PolicyLoss, StepResult, TokenOutputs, TrainBatch, ValueFunction
from rlcore_fsdp.build import SCORE
from rlcore_fsdp.head import Head
from rlcore_fsdp.model import Model
from rlcore_fsdp.packs import Pack
from rlcore_toolkit import SwappedModel, response_log_probs, vocab_parallel_top


class LanguageModel(Model):
    """A policy, a reference or a teacher."""

    @property
    def base(self) -> BareModel:
        """The policy without its adapter."""
        return BareModel(self)

    @property
    def start(self) -> BareModel | SwappedModel:
        """The policy with its first adapter; with B of zeros that is none."""
        if self.first_adapter is None:
            return self.base
        return SwappedModel(self, self.first_adapter, lambda policy: policy.adapter.held())

    def _prepare(self, model: Any) -> None:
        self.head = Head(model)

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
        """Columns as `rlcore.Scorer` has them."""

        def read(part: Pack, hidden_nH: Tensor) -> Mapping[str, Tensor]:
            logits = self.head.logits(hidden_nH)
            ids = vocab_parallel_top(logits, top) if top else part.part.per_token[chosen] if chosen else None
            outputs = token_outputs(logits, part, temperature, entropy=entropy, ids=ids)
            names = {"chosen": "top_log_probs"}
            columns = {names.get(name, name): one for name, one in outputs.items()}
            return columns | ({"top_ids": ids} if top and ids is not None else {})

        return self._columns(batch, tokens_per_rank, read)

    def train(
        self,
        batch: TrainBatch,
        loss: PolicyLoss,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
        chosen: str | None = None,
    ) -> StepResult:
        """One optimizer step, as `rlcore.Policy` has it."""

        def read(part: Pack, hidden_nH: Tensor) -> Mapping[str, Tensor]:
            ids = part.part.per_token[chosen] if chosen else None
            grads = {"entropy": entropy, "entropy_grad": entropy_grad}
            return token_outputs(self.head.logits(hidden_nH), part, temperature, ids=ids, **grads)

        def score(outputs: Mapping[str, Tensor], part: TrainBatch) -> LossResult:
            return loss(TokenOutputs(**outputs), part)

        return self._fit(batch, tokens_per_rank, read, score)


class BareModel:
    """A policy without its adapter."""

    def __init__(self, policy: LanguageModel) -> None:
        self._policy = policy

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Columns as `LanguageModel.forward` gives them."""
        assert self._policy.adapter is not None
        with self._policy.adapter.off():
            return self._policy.forward(batch, **options)


class ValueModel(Model):
    """A critic: one value for each token. Its head is zero at first, unless the directory has one."""

    def _prepare(self, model: Any) -> None:
        output = model.get_output_embeddings()
        [name] = [name for name, module in model._modules.items() if module is output]
        model._modules[name] = None
        model._tied_weights_keys = None
        model.all_tied_weights_keys = {}
        model.score = nn.Linear(
            output.weight.shape[1], 1, bias=False, device="meta", dtype=output.weight.dtype
        )

    def _before_weights(self, model: Any) -> None:
        nn.init.zeros_(model.get_parameter(SCORE))

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """The values of the response tokens, fp32 [R] on the CPU."""
        return self._columns(batch, tokens_per_rank, self._values)["values"]

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """One optimizer step, as `rlcore.ValueModel` has it."""
        return self._fit(
            batch, tokens_per_rank, self._values, lambda outputs, part: loss(outputs["values"], part)
        )

    def _values(self, part: Pack, hidden_nH: Tensor) -> Mapping[str, Tensor]:
        values: Tensor = self.net.model.score(hidden_nH)[:, 0].float()
        return {"values": values}


def token_outputs(
    logits: Any,
    part: Pack,
    temperature: float,
    *,
    entropy: bool = False,
    entropy_grad: bool = False,
    ids: Tensor | None = None,
) -> dict[str, Tensor]:
    """The fields of `TokenOutputs`; of one row where there is no response token.

    `ids` int64 [n, K]: the tokens of `chosen`.
    """
    outputs = response_log_probs(
        logits, part.targets, ids, temperature=temperature, entropy=entropy, entropy_grad=entropy_grad
    )
    named = zip(("log_probs", "entropy", "chosen"), outputs, strict=True)
    return {name: one for name, one in named if one is not None}
