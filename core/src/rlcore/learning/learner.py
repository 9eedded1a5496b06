"""`Learner`: the algorithm on one rank, from this rank's share of a rollout batch to optimizer steps."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TOP_IDS
from rlcore.api.errors import CheckpointError, LogProbGapError, NotFiniteError, RunError
from rlcore.api.run_config import KlOptions
from rlcore.api.trainer import DataRank, Policy, Scorer, StepResult, ValueModel
from rlcore.api.training import AdvantageEstimator, Correction, Loss, ValueLoss
from rlcore.learning.advantages import (
    WithTeacher,
    advantage_metrics,
    in_rewards,
    prepare,
    with_batch_columns,
)
from rlcore.learning.batch_file import save_batch
from rlcore.learning.critic import CriticLearner, with_value_weights
from rlcore.learning.forwards import Forwards, clock
from rlcore.learning.gather import gather_batch, gather_rows, rows_of, with_local
from rlcore.learning.invariants import check_copy, check_first_step
from rlcore.learning.maths import where_live
from rlcore.learning.metrics import summary
from rlcore.learning.minibatch import assign_minibatches, samples_of, select, tokens_of
from rlcore.learning.objective import PLACE, Objective
from rlcore.learning.settings import LearnerSettings

REFERENCE = "reference"
BATCHES = "batches"
"""The folder of the run in which ranks save their batches (`--save-batches-every`)."""


class Learner:
    """One rank's view of the algorithm. `update` is collective, as the models' methods are."""

    def __init__(
        self,
        policy: Policy,
        *,
        loss: Loss,
        estimator: AdvantageEstimator | None,
        settings: LearnerSettings,
        corrections: Sequence[Correction] = (),
        reference: Scorer | None = None,
        teacher: Scorer | None = None,
        critic: ValueModel | None = None,
        value_loss: ValueLoss | None = None,
        rank: DataRank | None = None,
    ) -> None:
        """`estimator`: None where the data give the responses, which have no advantages.

        `value_loss` comes with a `critic`; `reference` and `teacher` are given if something reads their
        log-probs. The log-probs of a teacher on an engine are a column of the batch already. `rank`: None in
        a single process.
        """
        self._policy = policy
        run = settings.run
        coef = run.kl.distill_coef
        self._estimator = WithTeacher(estimator, coef) if coef and estimator else estimator
        self._settings = settings
        # Of files, which policies must not share.
        self._suffix = f"-{settings.policy}" if settings.policy else ""
        self._run = run
        self._forwards = Forwards(policy, settings, reference=reference, teacher=teacher, critic=critic)
        self._objective = Objective(
            loss,
            run.loss.entropy_coef,
            corrections=corrections,
            rollout_as_old=settings.rollout_as_old,
            kl=run.kl,
        )
        self._critic: CriticLearner | None = None
        if critic is not None:
            assert value_loss is not None, "a critic is trained by a value loss"
            self._critic = CriticLearner(critic, value_loss, run.optimizer.tokens_per_rank)
        self._parts = (loss, *corrections)
        self._kept: dict[str, Tensor] = {}
        self._unchecked = False
        self._has_initial_reference = REFERENCE in settings.copies
        self._rank = rank or DataRank()
        self._group = self._rank.group

    def update(
        self, local: TrainBatch, *, step: int, first: bool, kl_scale: float = 1.0, keep: bool = False
    ) -> dict[str, float]:
        """Train on `local`, this rank's share; returns `METRICS`, the same on every rank.

        `step`: from 1; the first `--critic.only-steps` train the critic alone. `kl_scale`: the factor on
        `kl_coef`. `first`: this is the first step of the process, so the policy's first mini-batch must pass
        `check_first_step`. `keep`: remember what `take_columns` returns.

        Raises NotFiniteError where a loss or a gradient is not finite. The mini-batch is then saved in the
        run's folder and has changed no weight.
        """
        # It stays so until a mini-batch had fresh tokens to compare (`_train_all`).
        self._unchecked |= first
        # Counted over all ranks: a rank without live tokens must take part in the others' collective calls.
        counts = torch.tensor([int((local.per_token["loss_mask"] > 0).sum()), len(local)])
        if self._group is not None:
            dist.all_reduce(counts, group=self._group)
        live, samples = counts.tolist()
        if not live:
            return {"train/tokens": 0.0, "train/samples": float(samples), "train/updates": 0.0}
        times: dict[str, float] = {}
        is_warmup = self._is_warmup(step)
        only = self._settings.return_needs if is_warmup else None
        # Mini-batches come first: each forward runs over the same micro-batches as the training step.
        local = self._forwards.columns(self._with_minibatches(local), times, only)
        needs = self._settings.return_needs if is_warmup else self._settings.needs
        if missing := sorted(needs - {*local.per_token, *local.per_sample}):
            raise RunError(f"A part of the run reads {missing[0]!r}, which the batch does not have.")
        kl = self._run.kl.model_copy(update={"kl_coef": self._run.kl.kl_coef * kl_scale})
        self._objective.kl = kl
        with clock(times, "time/advantages_s"):
            whole = self._prepared(local, kl)
            if not is_warmup:
                whole = with_batch_columns(whole, self._parts)
            if keep:
                places = torch.arange(int(whole.response_lengths.sum()))
                whole = whole.with_columns(per_token={PLACE: places})
            rows = rows_of(local.per_sample["position"], whole.per_sample["position"])
            share = with_local(select(whole, rows), local)
        every = self._run.debug.save_batches_every
        if every and step % every == 0:
            number = dist.get_rank() if dist.is_initialized() else 0
            name = f"{step}-rank-{number}{self._suffix}.safetensors"
            save_batch(share, Path(self._settings.folder) / BATCHES / name)
        metrics = {"train/tokens": float(live), "train/updates": 0.0}
        if self._run.kl.kl_coef:
            metrics["train/kl_coef"] = kl.kl_coef
        with clock(times, "time/update_s"):
            metrics |= self._train_all(whole, share, step)
        if self._estimator is not None:
            metrics |= {f"train/{name}": value for name, value in advantage_metrics(whole).items()}
        if self._critic is not None:
            metrics |= self._critic.take_metrics(whole)
        if keep:
            self._kept = self._columns(whole)
        return {**metrics, "train/samples": float(samples), **times}

    def take_columns(self) -> dict[str, Tensor]:
        """Columns of the whole batch from the last update with `keep`: fp32 [R], 0 where not live.

        `advantages`, and `trained_log_probs`: the policy's log-prob when the token was trained on (NaN: it
        was in no mini-batch). Empty if the policy was not updated.
        """
        kept, self._kept = self._kept, {}
        return kept

    def _columns(self, whole: TrainBatch) -> dict[str, Tensor]:
        """Collective."""
        log_probs_R = self._largest(self._objective.take_log_probs(int(whole.response_lengths.sum())))
        is_seen_R = torch.isfinite(log_probs_R)
        columns = {}
        if self._estimator is not None:
            columns["advantages"] = whole.per_token["advantages"]
        if bool(is_seen_R.any()):  # else the critic alone was trained
            log_probs_R = torch.where(is_seen_R, log_probs_R, torch.nan)
            columns["trained_log_probs"] = where_live(log_probs_R, whole.per_token["loss_mask"])
        return columns

    def _train_all(self, whole: TrainBatch, share: TrainBatch, step: int) -> dict[str, float]:
        """One optimizer step for each mini-batch that is not empty. Returns the policy's metrics."""
        results: list[StepResult] = []
        gaps: list[float] = []
        for number in range(self._run.optimizer.minibatches):
            # Asked of the whole batch, so that all ranks skip the same mini-batches.
            if not bool((whole.per_token["weights"][tokens_of(whole, number)] > 0).any()):
                continue
            part = select(share, samples_of(share, number))
            if self._critic is not None:
                self._require_finite(self._critic.train(part), whole, number, step, "critic's ")
            if self._is_warmup(step):
                continue
            result, gap = self._train(part)
            self._require_finite(result, whole, number, step)
            if self._unchecked and not results:
                # a batch that is all of older weights leaves trainer and engine to be compared by a later one
                self._unchecked = self._settings.sampled and result.metrics["fresh"] == 0
                self._check_first_step(result, gap, whole, number, step)
            results.append(result)
            gaps.append(gap)
        if not results:
            return {}
        if not self._settings.sampled:
            return summary(results)
        comparable = float(self._run.sampling.samples_whole)
        metrics = {**summary(results), "train/kl_engine_comparable": comparable}
        return {**metrics, "train/kl_engine_max": max(gaps)} if metrics["train/fresh"] else metrics

    def _is_warmup(self, step: int) -> bool:
        """Whether the step trains only the critic."""
        return 0 < step <= self._run.critic.only_steps

    def _with_minibatches(self, local: TrainBatch) -> TrainBatch:
        """`local` with the column `minibatch`.

        The driver may have divided the batch already; then it stays so.
        """
        if "minibatch" in local.per_sample:
            return local
        # `unit` marks what must be trained on together, such as both responses of a pair.
        together = local.per_sample.get("unit", local.per_sample["rollout"])
        position_B, together_B = gather_rows([local.per_sample["position"], together], self._group)
        # In the order of the whole batch: the mini-batches must not depend on which rank has which samples.
        order_B = torch.argsort(position_B)
        minibatch_B = assign_minibatches(together_B[order_B], self._run.optimizer.minibatches)
        rows = rows_of(local.per_sample["position"], position_B[order_B])
        return local.with_columns(per_sample={"minibatch": minibatch_B[rows]})

    def _prepared(self, local: TrainBatch, kl: KlOptions) -> TrainBatch:
        run = self._run
        # Each rank prepares the whole batch, so that no baseline and no denominator depends on the split.
        whole = gather_batch(local, self._group)
        if kl.kl_coef and kl.kl_place == "reward":  # before the estimator, which reads the rewards
            whole = in_rewards(whole, kl)
        whole = prepare(
            whole,
            self._estimator,
            normalizer=run.loss.normalizer,
            constant=run.sampling.max_response_tokens,
            minibatches=run.optimizer.minibatches,
            whiten_advantages=run.loss.whiten_advantages,
        )
        return whole if self._critic is None else with_value_weights(whole)

    def _train(self, part: TrainBatch) -> tuple[StepResult, float]:
        """One optimizer step on this rank's share of a mini-batch, and the largest gap to the engine."""
        result = self._policy.train(
            part,
            self._objective,
            temperature=self._run.sampling.temperature,
            tokens_per_rank=self._run.optimizer.tokens_per_rank,
            # Measured in every run, for `train/entropy`; with a gradient only where the loss has a bonus.
            entropy=True,
            entropy_grad=self._run.loss.entropy_coef > 0,
            chosen=TOP_IDS if self._settings.top_tokens else None,
        )
        gap = self._objective.take_gap_max()
        # The stages of a pipeline that see no log-probs bring 0. A NaN becomes infinity, which no maximum
        # loses.
        known = torch.tensor(math.inf if math.isnan(gap) else gap, dtype=torch.float64)
        return result, float(self._largest(known))

    def _largest(self, values: Tensor) -> Tensor:
        """The largest over all ranks, on the CPU."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return values
        largest = values.to(self._rank.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.cpu()

    def _keep_batch(self, whole: TrainBatch, number: int, name: str) -> str:
        """Write mini-batch `number` as NAME.safetensors: the end of a sentence that says where it is."""
        path = Path(self._settings.folder) / f"{name}{self._suffix}.safetensors"
        try:
            # Every rank knows, for what was found is of all ranks together. One of them writes.
            if not dist.is_initialized() or dist.get_rank() == 0:
                save_batch(select(whole, samples_of(whole, number)), path)
        except CheckpointError as error:
            return f"the batch could not be kept. {error}"
        return f"the batch is in {path}."

    def _require_finite(
        self, result: StepResult, whole: TrainBatch, number: int, step: int, whose: str = ""
    ) -> None:
        if result.finite:
            return
        kept = self._keep_batch(whole, number, f"not_finite_step_{step}")
        more = "".join(f", {name} {value}" for name, value in result.extras.items())
        raise NotFiniteError(
            f"Step {step} was not taken: the {whose}loss is {result.loss} and the gradient norm "
            f"{result.grad_norm}{more}; {kept}"
        )

    def _check_first_step(
        self, result: StepResult, gap: float, whole: TrainBatch, number: int, step: int
    ) -> None:
        if self._settings.sampled:
            try:
                check_first_step(
                    result,
                    gap,
                    dtype="fp8" if self._settings.serves_fp8 else self._settings.dtype,
                    comparable=self._run.sampling.samples_whole,
                    max_gap=self._run.loss.max_kl_engine,
                    same_forward=not self._settings.rollout_as_old,
                )
            except LogProbGapError as error:
                kept = self._keep_batch(whole, number, f"log_prob_gap_step_{step}")
                raise LogProbGapError(f"{str(error).removesuffix('.')}; {kept}") from None
        if self._has_initial_reference:
            # After the first update the policy has left its reference.
            self._has_initial_reference = False
            if "kl_reference" in result.metrics:
                kl = result.metrics["kl_reference"] / result.metrics["tokens"]
                is_apart = self._run.reference.ranks > 0
                check_copy(REFERENCE, kl, dtype=self._settings.dtype, is_apart=is_apart)
