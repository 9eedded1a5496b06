"""`Role`: one rank of one model, which scores tokens, takes optimizer steps, and saves and loads itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from rlcore import (
    AdapterSpec,
    ModelHook,
    ModelSpec,
    OptimizerSettings,
    PolicyLoss,
    RoleSpec,
    SleepLevel,
    StepResult,
    TrainBatch,
)
from rlcore_megatron.config import MTP
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore.bridges.adapters import attach
from rlcore_megatron.mcore.bridges.mtp import MtpLoss, policy_tensors
from rlcore_megatron.mcore.checkpoint.adapter import StagedAdapter
from rlcore_megatron.mcore.checkpoint.saving import StagedRole, load_role, stage_role
from rlcore_megatron.mcore.layers.adapter import AdapterSet
from rlcore_megatron.mcore.layers.balance import KIND, keep_balanced, scale_of, take_value
from rlcore_megatron.mcore.layers.indexer import take_divergence
from rlcore_megatron.mcore.layers.replay import keep_choices
from rlcore_megatron.mcore.optimizer.wrappers import (
    apply_gradients,
    build_optimizer,
    clip_gradients,
    wrap_for_gradients,
    zero_gradients,
)
from rlcore_megatron.mcore.packs.choices import read_choices
from rlcore_megatron.mcore.packs.narrowing import narrow
from rlcore_megatron.mcore.packs.packing import Pack, pack
from rlcore_megatron.mcore.role.build import build_model
from rlcore_megatron.mcore.role.collect import on_every_stage, sum_over_ranks
from rlcore_megatron.mcore.role.rows import RowSelector
from rlcore_megatron.mcore.role.sleeping import gradient_buffers, model_tensors, optimizer_state
from rlcore_megatron.mcore.role.token_outputs import score_columns, token_outputs
from rlcore_megatron.mcore.role.view import Frozen, trained, view_of
from rlcore_megatron.mcore.role.weights import adapter_tensors, hf_tensors
from rlcore_toolkit import (
    Bins,
    Logits,
    ModelOffload,
    current_device,
    in_order,
    learning_rate,
    loss_sums,
    published_adapter,
    rank_bins,
    rank_most,
)

_BALANCE, _MTP = "the routers' balance", "the loss of multi-token prediction"
_INDEX = "the divergence of the indexers"
"""Among the sums of a step, whose other names are those of metrics."""

Score = Callable[[Logits, Pack], tuple[Tensor, Any]]
"""From a micro-batch's output to what is differentiated, and to what is kept of it."""


class Role:
    """One rank of one model, made after `rlcore_megatron.mcore.parallel.start`.

    The methods are collective: every rank calls them in the same order. The ranks of one data-parallel index
    (all its tensor- and pipeline-parallel ranks) pass the same batch.
    """

    value_head = False

    def __init__(
        self,
        spec: ModelSpec,
        optimizer: OptimizerSettings | None,
        *,
        replayed: frozenset[str] = frozenset(),
        writers: dist.ProcessGroup | None = None,
        hooks: Sequence[ModelHook] = (),
        adapter: AdapterSpec | None = None,
    ) -> None:
        """`optimizer` None: a frozen model (reference, teacher), which has no gradients and no optimizer.

        `replayed`: columns with an engine's choices, which layers take over in forward and backward
        (`layers.replay`). `writers`: the ranks, by a group of their own that writes checkpoints beside
        training; None: torch's default group.
        `hooks`: called before the optimizer is made. `adapter`: what is trained in place of the weights.
        """
        built = build_model(
            spec, trainable=optimizer is not None, value_head=self.value_head, adapter=adapter
        )
        self.built, self._spec, self._is_further = built, spec, False
        self.view = view_of(built) if hooks else None
        trainable = list(trained(built))
        for hook in hooks:
            assert self.view is not None, "made for them"
            hook.built(self.view)
        self._frozen = Frozen(trainable) if hooks else None
        self._writers = writers
        self.replayed = replayed
        self._vocab_size = int(built.hf_config.vocab_size)
        self._mtp = self._mtp_loss(spec) if optimizer is not None and not self.value_head else None
        self._longest = getattr(built.hf_config, "max_position_embeddings", None)
        self._selector = RowSelector(built.chunks, built.config)
        self._align = built.config.tensor_model_parallel_size if built.config.sequence_parallel else 1
        self._balances = built.config.moe_router_load_balancing_type == KIND
        self._teaches_indexers = bool(built.config.dsa_indexer_loss_coeff) and optimizer is not None
        self._context_size = built.config.context_parallel_size
        if self._context_size > 1:
            # Each rank takes a run of the front and one of the back, so that attention costs all the same.
            self._align *= 2 * self._context_size
        self._begin(optimizer, adapter)

    def _begin(self, optimizer: OptimizerSettings | None, adapter: AdapterSpec | None) -> None:
        """What is trained, with an optimizer that has taken no step."""
        built, self.settings, self._adapter = self.built, optimizer, adapter
        self.steps = 0
        """Optimizer steps taken: the position in the learning-rate schedule."""
        self.lr_scale = 1.0
        self.models: list[Any] = list(built.chunks)
        self.optimizer: Any = None
        if optimizer is not None:
            passed = split(check_fields(self._spec.fields))
            self.models = wrap_for_gradients(built.chunks, built.config, passed.ddp)
            self.optimizer = build_optimizer(self.models, optimizer, built.config, passed.optimizer)
            built.config.finalize_model_grads_func = _finalize
        self._no_sync = built.config.no_sync_func
        self._away = ModelOffload()
        if adapter is not None and built.adapters is not None:
            self.base = self._with(built.adapters.none())
            self.start = self._with(built.adapters.frozen()) if adapter.source else self.base

    def further(self, spec: RoleSpec) -> Self:
        """Another policy over this model: its adapter and its optimizer are its own, all else is shared."""
        assert isinstance(spec.overlay, AdapterSpec), "that is all that it has"
        policy = copy.copy(self)
        adapters = attach(self.built.bridge, self.built.chunks, spec.overlay)
        policy.built = replace(self.built, adapters=adapters)
        policy.view = policy._frozen = None
        policy._is_further = True
        policy._begin(spec.optimizer, spec.overlay)
        return policy

    def _with(self, adapters: AdapterSet) -> Self:
        """A frozen policy: this model with other adapters."""
        policy = copy.copy(self)
        policy.built, policy.optimizer, policy.settings = replace(self.built, adapters=adapters), None, None
        policy.replayed = frozenset()  # the choice was this one's
        return policy

    def _put_adapters(self) -> None:
        """From now on the model is this policy's."""
        if self.built.adapters is not None:
            self.built.adapters.put()
            self.built.config.no_sync_func = self._no_sync

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
        """Columns of the R = sum(R_i) response tokens, on the CPU and in `batch`'s order, without gradients.

        `log_probs` fp32 [R]; with `entropy` also `entropy` fp32 [R]. With `top` = K also `top_ids` int64
        [R, K], the tokens that the model holds likeliest in the place of each, and `top_log_probs` fp32
        [R, K]; with `chosen` the latter of the tokens in that column of `batch`, int64 [R, K]. On every
        tensor- and pipeline-parallel rank.
        """
        bins = self._plan(batch, tokens_per_rank)

        def score(logits: Logits, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
            return torch.zeros((), device=part.tokens.device), score_columns(
                logits,
                part,
                vocab_size=self._vocab_size,
                temperature=temperature,
                entropy=entropy,
                top=top,
                ids=chosen,
            )

        with torch.no_grad():
            columns = self._run(batch, bins, score, forward_only=True)
        width = batch.per_token[chosen].shape[1] if chosen else top
        kinds: dict[str, tuple[int, torch.dtype]] = {"log_probs": (0, torch.float32)}
        kinds |= {"entropy": (0, torch.float32)} if entropy else {}
        kinds |= {"top_ids": (width, torch.int64)} if top else {}
        kinds |= {"top_log_probs": (width, torch.float32)} if width else {}
        return {
            name: self._column([scores[name] for scores in columns], batch, bins, *kind)
            for name, kind in kinds.items()
        }

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
        """One optimizer step over this rank's minibatch.

        The gradient is the sum of d total / dθ over micro-batches and data-parallel ranks; `tokens_per_rank`
        bounds the tokens of a micro-batch. `chosen`: as in `forward`, for `TokenOutputs.chosen`. With a loss,
        gradient norm or gradient of the layer for multi-token prediction that is not finite nothing changes.
        """

        def score(logits: Logits, part: Pack) -> tuple[Tensor, dict[str, Tensor]]:
            outputs = token_outputs(
                logits,
                part,
                vocab_size=self._vocab_size,
                temperature=temperature,
                entropy=entropy,
                entropy_grad=entropy_grad,
                ids=part.batch.per_token[chosen] if chosen else None,
            )
            return loss_sums(outputs.log_probs, lambda: loss(outputs, part.batch))

        return self._fit(batch, tokens_per_rank, score)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """`rlcore_megatron.mcore.role.weights.hf_tensors`, or the adapter alone."""
        self._put_adapters()
        if self._adapter is not None and self._adapter.travels:
            return published_adapter(adapter_tensors(self.built).items(), self._adapter)
        return hf_tensors(self.built)

    def copy_weights(self, other: Role) -> None:
        """Take over the weights of `other`, a role of the same model under the same layout. No collective."""
        with torch.no_grad():
            for mine, theirs in zip(self.built.chunks, other.built.chunks, strict=True):
                for to, source in zip(policy_tensors(mine), policy_tensors(theirs), strict=True):
                    to.copy_(source)

    def sleep(self, what: SleepLevel) -> int:
        """Give up memory as `rlcore.Sleeper` says; no collective."""
        self._put_adapters()
        weights = model_tensors(self._own_modules())
        if self.optimizer is None:
            return self._away.sleep(what, weights=weights)
        return self._away.sleep(
            what,
            weights=weights,
            gradients=gradient_buffers(self.models, self.optimizer),
            states=optimizer_state(self._own_modules(), self.optimizer),
        )

    def wake(self) -> None:
        """Undo `sleep`; no collective."""
        self._away.wake()

    def _own_modules(self) -> Sequence[nn.Module]:
        """What no other role has: of a further policy, its adapters."""
        adapters = [adapter for _, adapter in self.built.adapters or ()]
        return adapters if self._is_further else self.built.chunks

    def save(self, folder: Path) -> None:
        """Weights, optimizer, schedule and random states into `folder`, which is made if needed.

        CheckpointError on every rank if it fails on any.
        """
        self.stage().write(folder)

    def stage(self) -> StagedRole:
        """What `save` would write now, copied to host memory, to be written while training goes on."""
        self._put_adapters()
        built, whole = self.built, None
        if self._adapter is not None:
            base = Path(self._spec.path)
            whole = StagedAdapter(spec=self._adapter, base=base, tensors=adapter_tensors(built))
        return stage_role(built.chunks, self.optimizer, self.steps, self._writers, built.adapters, whole)

    def load(self, folder: Path) -> None:
        """What `save` wrote, under the same layout or another one; random states only under the same.

        CheckpointError where `folder` is missing, damaged, of another model or not allowed.
        """
        self._put_adapters()
        self.steps = load_role(folder, self.built.chunks, self.optimizer, self.built.adapters)

    def _fit(self, batch: TrainBatch, tokens_per_rank: int, score: Score) -> StepResult:
        assert self.settings is not None, "a frozen role is not trained"
        bins = self._plan(batch, tokens_per_rank)
        zero_gradients(self.models)
        metrics = self._run(batch, bins, score, forward_only=False)
        if self._balances:
            metrics = [*metrics, {_BALANCE: take_value(self.built.chunks)}]
        if self._teaches_indexers:
            metrics = [*metrics, {_INDEX: take_divergence(self.built.chunks, self.built.config)}]
        sums = sum_over_ranks(metrics)
        balance = {"router_balance": sums.pop(_BALANCE)} if self._balances else {}
        extras = {} if self._mtp is None else {"mtp_loss": sums.pop(_MTP)}
        if self._teaches_indexers:
            extras["indexer_divergence"] = sums.pop(_INDEX)
        # The loss goes by "", a name that no metric can have.
        return self._step(sums.pop("", 0.0), sums, balance, extras)

    def _step(
        self, loss: float, metrics: dict[str, float], balance: dict[str, float], extras: dict[str, float]
    ) -> StepResult:
        assert self.settings is not None
        lr = learning_rate(self.settings, self.steps) * self.lr_scale
        if self._frozen is not None:
            self._frozen.forget_gradients()
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        finite = all(math.isfinite(value) for value in (loss, norm, *extras.values()))
        if self._mtp is not None and not self._mtp.has_finite_gradients():  # the norm leaves them out
            finite, extras = False, {**extras, "mtp_grad_norm": math.nan}
        if finite:
            clip_gradients(self.optimizer, norm)
            apply_gradients(self.optimizer, lr)
            if self._frozen is not None:
                self._frozen.put_back()
            self.steps += 1
        return StepResult(
            loss=loss,
            metrics=metrics,
            grad_norm=norm,
            lr=lr,
            finite=finite,
            extras={**balance, **extras},
        )

    def _mtp_loss(self, spec: ModelSpec) -> MtpLoss | None:
        passed = split(check_fields(spec.fields))
        if MTP not in passed.transformer:
            return None
        return MtpLoss(self.built.chunks, self.built.config, self._vocab_size, passed.mtp_factor)

    def _plan(self, batch: TrainBatch, tokens_per_rank: int) -> Bins:
        """This rank's micro-batches, as many as on every other data-parallel rank."""
        return rank_bins(batch, tokens_per_rank, self._agree, self._longest)

    def _agree(self, count: int) -> int:
        """The micro-batches of every rank, where this one needs `count`."""
        # Ranks that share experts meet in each micro-batch; one with fewer would make the rest wait.
        count = rank_most(count, mpu.get_data_parallel_group())
        if len(self.models) > 1:  # the interleaved schedule takes whole rounds of the pipeline
            stages = mpu.get_pipeline_model_parallel_world_size()
            count = -(-count // stages) * stages
        return count

    def _run(
        self,
        batch: TrainBatch,
        bins: Bins,
        score: Score,
        *,
        forward_only: bool,
    ) -> list[Any]:
        """`score`'s second value for each micro-batch on the last pipeline stage, nothing on the others."""
        self._put_adapters()
        place = current_device()
        # a branch that is cut sees two runs of tokens, its prompt and its own: attention knows one
        share = place.type == "cpu" and self._context_size == 1
        config = self.built.config
        columns = self.replayed
        batch = read_choices(batch, columns, config, self.built.hf_config)
        mtp = None if forward_only else self._mtp
        if mtp is not None:
            mtp.start(batch)
        is_ahead = mtp is not None and mtp.is_here
        whole = (
            pack(batch, rows, align=self._align, device=place, share=share, columns=columns, ahead=is_ahead)
            for rows in bins
        )
        packs = [keep_choices(narrow(full), config) for full in whole]
        if (self._balances or self._teaches_indexers) and not forward_only:
            scale = scale_of(batch)
            packs = [keep_balanced(part, config, scale) for part in packs]

        def forward_step(parts: Iterator[Pack], model: Any) -> tuple[Tensor, Any]:
            part = next(parts)
            output = self._selector.call(model, part)

            def loss_function(logits: Tensor) -> tuple[Tensor, Tensor, Any]:
                total, kept = score(self._selector.logits(logits, part), part)
                if mtp is not None:
                    assert part.ahead is not None
                    own, kept[_MTP] = mtp(part.ahead)
                    total = total + own
                return total, torch.zeros((), dtype=torch.int, device=total.device), kept

            return output, loss_function

        for chunk in self.built.chunks:
            if chunk.training == forward_only:
                chunk.train(not forward_only)
        outputs = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(packs) for _ in self.models],
            model=self.models,
            num_microbatches=len(packs),
            seq_length=max(part.tokens.shape[1] for part in packs),
            micro_batch_size=1,
            forward_only=forward_only,
        )
        if mtp is not None:
            mtp.stop()
        return list(outputs)

    def _column(
        self,
        parts: Sequence[Tensor],
        batch: TrainBatch,
        bins: Bins,
        width: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """What the micro-batches gave for their response tokens, on every rank and in `batch`'s order.

        [R, width], or [R] where that is 0.
        """
        shape = (int(batch.response_lengths.sum()), *((width,) if width else ()))
        return in_order(on_every_stage(parts, shape, dtype), batch, bins)


def _finalize(models: list[Any], num_tokens: Tensor | None = None, **known: Any) -> None:
    """megatron's reductions without its division by a token count: our denominators are in the weights."""
    finalize_model_grads(models, None, **known)
