"""`Learner`: the algorithm on one rank, from this rank's share of a rollout batch to optimizer steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.data.batch import TrainBatch
from rlcore.errors import NotFiniteError
from rlcore.gather import gather_batch, gather_rows, rows_of
from rlcore.interfaces import AdvantageEstimator, Loss
from rlcore.invariants import check_first_step
from rlcore.megatron.imports import device
from rlcore.megatron.step import StepResult
from rlcore.objective import Objective, advantage_metrics, assign_minibatches, prepare
from rlcore.settings import LearnerSettings

__all__ = ["METRICS", "Learner", "LearnerSettings", "Policy", "save_batch"]

METRICS = {
    "train/loss": "mean loss of the mini-batches",
    "train/grad_norm": "mean gradient norm of the mini-batches, before clipping",
    "train/lr": "learning rate of the last optimizer step",
    "train/entropy": "mean entropy of the policy in nats, at the sampling temperature",
    "train/ppo_kl": "mean old minus new log-prob",
    "train/kl_engine": "mean |trainer - engine| log-prob, by the weights before the update",
    "train/kl_engine_max": "largest |trainer - engine| log-prob",
    "train/kl_engine_k3": "k3 estimate of KL(engine || trainer)",
    "train/kl_engine_comparable": "1; 0 where the engine's distribution is cut by top-p, top-k or min-p",
    "train/advantage_mean": "mean advantage",
    "train/advantage_std": "standard deviation of the advantages",
    "train/tokens": "tokens trained on",
    "train/samples": "samples in the batch",
    "train/updates": "optimizer steps; 0 where no token was left to train on",
    "time/old_log_probs_s": "seconds for the log-probs before the update (only with several mini-batches)",
    "time/advantages_s": "seconds for gathering the batch and for the advantages",
    "time/update_s": "seconds for the optimizer steps",
}
"""What `Learner.update` returns, beside `train/<name>` for each metric of the loss. Means are over tokens."""


class Policy(Protocol):
    """What the learner needs of a trainer; `rlcore.megatron.role.Role` is one."""

    def forward(
        self, batch: TrainBatch, *, temperature: float, tokens_per_rank: int, entropy: bool = False
    ) -> dict[str, Tensor]:
        """`log_probs` fp32 [R], without gradient."""
        ...

    def train(
        self,
        batch: TrainBatch,
        loss: Objective,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
    ) -> StepResult:
        """One optimizer step, or none where something is not finite."""
        ...


class Learner:
    """One rank's view of the algorithm. `update` is collective, as the policy's methods are."""

    def __init__(
        self, policy: Policy, *, loss: Loss, estimator: AdvantageEstimator, settings: LearnerSettings
    ) -> None:
        self._policy = policy
        self._estimator = estimator
        self._settings = settings
        self._objective = Objective(loss, settings.entropy_coef)
        self._group = _data_group()

    def update(self, local: TrainBatch, *, step: int, first: bool) -> dict[str, float]:
        """Train on `local`, this rank's share; returns `METRICS`, the same on every rank.

        `step`: for messages. `first`: the first step of this process, on which `check_first_step` is made.
        Raises NotFiniteError where a loss or a gradient is not finite: the mini-batch is then saved in the
        run's folder, and changed no weight.
        """
        live, samples = self._count(local)
        if not live:
            return {"train/tokens": 0.0, "train/samples": float(samples), "train/updates": 0.0}
        times: dict[str, float] = {}
        local = self._with_minibatches(local)
        if self._settings.minibatches > 1:
            with _clock(times, "time/old_log_probs_s"):
                local = self._with_old_log_probs(local)
        with _clock(times, "time/advantages_s"):
            whole = self._prepared(local)
            mine = _select(whole, rows_of(local.per_sample["position"], whole.per_sample["position"]))
        results: list[StepResult] = []
        gaps: list[float] = []
        with _clock(times, "time/update_s"):
            for number in range(self._settings.minibatches):
                if not bool((whole.per_token["weights"][_tokens_of(whole, number)] > 0).any()):
                    continue
                result, gap = self._train(_select(mine, _samples_of(mine, number)))
                if not result.finite:
                    raise self._not_finite(result, _select(whole, _samples_of(whole, number)), step)
                if first and not results:
                    self._check_first_step(result, gap)
                results.append(result)
                gaps.append(gap)
        metrics = _summary(results)
        metrics["train/kl_engine_max"] = max(gaps)
        metrics["train/kl_engine_comparable"] = float(self._settings.whole)
        metrics |= {f"train/{name}": value for name, value in advantage_metrics(whole).items()}
        return {**metrics, "train/samples": float(samples), **times}

    def _count(self, local: TrainBatch) -> tuple[int, int]:
        """Live tokens and samples over all ranks."""
        mine = torch.tensor([[int((local.per_token["loss_mask"] > 0).sum()), len(local)]])
        live, samples = gather_rows(mine, self._group).sum(0).tolist()
        return live, samples

    def _with_minibatches(self, local: TrainBatch) -> TrainBatch:
        position_B = gather_rows(local.per_sample["position"], self._group)
        order_B = torch.argsort(position_B)
        rollout_B = gather_rows(local.per_sample["rollout"], self._group)[order_B]
        minibatch_B = assign_minibatches(rollout_B, self._settings.minibatches)
        rows = rows_of(local.per_sample["position"], position_B[order_B])
        return local.with_columns(per_sample={"minibatch": minibatch_B[rows]})

    def _with_old_log_probs(self, local: TrainBatch) -> TrainBatch:
        """Scored mini-batch by mini-batch: the packs are then those of training, and so is the rounding."""
        old_R = torch.zeros(int(local.response_lengths.sum()))
        for number in range(self._settings.minibatches):
            scores = self._policy.forward(
                local.select(_samples_of(local, number)),
                temperature=self._settings.temperature,
                tokens_per_rank=self._settings.tokens_per_rank,
            )
            old_R[_tokens_of(local, number)] = scores["log_probs"]
        return local.with_columns(per_token={"old_log_probs": old_R})

    def _prepared(self, local: TrainBatch) -> TrainBatch:
        return prepare(
            gather_batch(local, self._group),
            self._estimator,
            normalizer=self._settings.normalizer,
            constant=self._settings.max_response_tokens,
            minibatches=self._settings.minibatches,
        )

    def _train(self, part: TrainBatch) -> tuple[StepResult, float]:
        """One optimizer step on this rank's share of a mini-batch, and the largest gap to the engine."""
        result = self._policy.train(
            part,
            self._objective,
            temperature=self._settings.temperature,
            tokens_per_rank=self._settings.tokens_per_rank,
            entropy=True,
            entropy_grad=self._settings.entropy_coef > 0,
        )
        return result, _largest(self._objective.take_gap_max())

    def _not_finite(self, result: StepResult, part: TrainBatch, step: int) -> NotFiniteError:
        path = Path(self._settings.folder) / f"not_finite_step_{step}.safetensors"
        if not dist.is_initialized() or dist.get_rank() == 0:
            save_batch(part, path)
        return NotFiniteError(
            f"Step {step} was not taken: the loss is {result.loss} and the gradient norm {result.grad_norm}; "
            f"the batch is in {path}."
        )

    def _check_first_step(self, result: StepResult, gap: float) -> None:
        check_first_step(
            result,
            gap,
            dtype=self._settings.dtype,
            comparable=self._settings.whole,
            max_gap=self._settings.max_kl_engine,
        )


def save_batch(batch: TrainBatch, path: Path) -> None:
    """A safetensors file: `tokens`, `prompt_lengths`, `response_lengths`, `per_token.*`, `per_sample.*`."""
    columns = {
        "tokens": batch.tokens,
        "prompt_lengths": batch.prompt_lengths,
        "response_lengths": batch.response_lengths,
        **{f"per_token.{name}": column for name, column in batch.per_token.items()},
        **{f"per_sample.{name}": column for name, column in batch.per_sample.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({name: column.contiguous() for name, column in columns.items()}, path)


def _data_group() -> ProcessGroup | None:
    """The data-parallel ranks, by a group that takes tensors of the CPU; None where there is one process."""
    if not dist.is_initialized():
        return None
    # at the top of the file it would come before rlcore.megatron, which makes it importable
    from megatron.core import parallel_state

    group: ProcessGroup
    if torch.cuda.is_available():
        group = parallel_state.get_data_parallel_group_gloo()
    else:
        group = parallel_state.get_data_parallel_group()
    return group


def _largest(value: float) -> float:
    """The largest over all ranks; the stages of a pipeline that see no log-probs bring 0."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    found = torch.tensor(math.inf if math.isnan(value) else value, dtype=torch.float64, device=device())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _select(batch: TrainBatch, rows: list[int]) -> TrainBatch:
    """`batch.select(rows)`, without a copy where that is the batch itself."""
    return batch if rows == list(range(len(batch))) else batch.select(rows)


def _samples_of(batch: TrainBatch, number: int) -> list[int]:
    rows: list[int] = torch.nonzero(batch.per_sample["minibatch"] == number).flatten().tolist()
    return rows


def _tokens_of(batch: TrainBatch, number: int) -> Tensor:
    return (batch.per_sample["minibatch"] == number)[batch.segments]


def _summary(results: Sequence[StepResult]) -> dict[str, float]:
    """Means of the steps, and means over all tokens of what was summed over tokens."""
    sums: dict[str, float] = {}
    for result in results:
        for name, value in result.metrics.items():
            sums[name] = sums.get(name, 0.0) + value
    tokens = sums.pop("tokens")
    return {
        "train/loss": sum(result.loss for result in results) / len(results),
        "train/grad_norm": sum(result.grad_norm for result in results) / len(results),
        "train/lr": results[-1].lr,
        "train/tokens": tokens,
        "train/updates": float(len(results)),
        **{f"train/{name}": value / tokens for name, value in sums.items()},
    }


@contextmanager
def _clock(times: dict[str, float], name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    times[name] = time.perf_counter() - begin
