"""The forward passes that come before the advantages: only those that something reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlcore.data.batch import TrainBatch
from rlcore.inputs import Input
from rlcore.minibatch import samples_of, tokens_of
from rlcore.roles import Scorer, ValueModel
from rlcore.settings import LearnerSettings


class Forwards:
    """The columns of `rlcore.inputs.Input`, on one rank."""

    def __init__(
        self,
        policy: Scorer,
        reference: Scorer | None,
        critic: ValueModel | None,
        settings: LearnerSettings,
    ) -> None:
        self._settings = settings
        # One step after the rollout batch takes its old log-probs from its own forward.
        several = settings.minibatches > 1 and settings.sampled and not settings.rollout_as_old
        self._old = policy if several or Input.OLD_LOG_PROBS in settings.needs else None
        self._reference = reference
        self._critic = critic

    def columns(self, local: TrainBatch, times: dict[str, float]) -> TrainBatch:
        """`local`, which has the column `minibatch`, with the inputs; seconds go into `times`."""
        if self._old is not None:
            with clock(times, "time/old_log_probs_s"):
                local = self._with(local, Input.OLD_LOG_PROBS, self._log_probs(self._old))
        if self._reference is not None:
            with clock(times, "time/reference_log_probs_s"):
                local = self._with(local, Input.REFERENCE_LOG_PROBS, self._log_probs(self._reference))
        if self._critic is not None:
            critic, budget = self._critic, self._settings.tokens_per_rank
            with clock(times, "time/values_s"):
                local = self._with(
                    local, Input.VALUES, lambda part: critic.values(part, tokens_per_rank=budget)
                )
        return local

    def _log_probs(self, model: Scorer) -> Callable[[TrainBatch], Tensor]:
        temperature, budget = self._settings.temperature, self._settings.tokens_per_rank
        return lambda part: model.forward(part, temperature=temperature, tokens_per_rank=budget)["log_probs"]

    def _with(self, local: TrainBatch, name: Input, score: Callable[[TrainBatch], Tensor]) -> TrainBatch:
        """Scored mini-batch by mini-batch: the packs are then those of training, and so is the rounding."""
        column_R = torch.zeros(int(local.response_lengths.sum()))
        for number in range(self._settings.minibatches):
            column_R[tokens_of(local, number)] = score(local.select(samples_of(local, number)))
        return local.with_columns(per_token={name.value: column_R})


@contextmanager
def clock(times: dict[str, float], name: str) -> Iterator[None]:
    """The seconds of the block, as `times[name]`."""
    begin = time.perf_counter()
    yield
    times[name] = time.perf_counter() - begin
