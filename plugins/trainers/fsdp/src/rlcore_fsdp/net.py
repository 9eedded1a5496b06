"""A model that reads packs: how it is called, and whether its attention keeps sequences apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlcore import ModelError, TrainBatch
from rlcore_fsdp import attention
from rlcore_fsdp.build import blocks_of
from rlcore_fsdp.packs import Pack, pack
from rlcore_toolkit import PROBE_TOKENS, BorrowedKernels, current_device, rank_most

Read = Callable[[Tensor], Mapping[str, Tensor]]
"""From the hidden states [n, H] that predict response tokens to outputs of n tokens."""

_GATHERED_ONCE = 1 << 30
"""Bytes of parameters that each rank may hold whole during a step."""
_PROMPTS, _RESPONSES = (5, 5, 3), (7, 4, 6)
"""The tokens of the samples that a model is tried with; the first two share their prompt."""


class Net:
    """A model of transformers whose forward gives what is read of the hidden states of a pack.

    All runs within the forward of the whole model, where FSDP2 has its parameters ready.
    """

    def __init__(
        self, model: PreTrainedModel, *, recompute: bool, is_exact: bool, draws: bool = False
    ) -> None:
        """`recompute`: the backward pass computes a block again. `is_exact`: it computes in fp32. `draws`:
        its blocks draw random numbers."""
        self.model: Any = model
        self._is_exact = is_exact
        self._plain: str = model.config._attn_implementation
        self.in_one_row = False
        self._shards = [one for one in model.modules() if isinstance(one, FSDPModule)]
        size = sum(one.numel() * one.element_size() for one in model.parameters())
        # in mixed precision, gradients that wait to be summed are of another dtype than the last ones
        self._gathers_once = is_exact and current_device().type == "cpu" and size <= _GATHERED_ONCE
        if self._gathers_once:
            for shard in self._shards:
                shard.set_reshard_after_forward(False, recurse=False)
        if recompute:
            for block in blocks_of(model):
                block.forward = partial(_recomputed, block.forward, draws)
        self.model.forward = self._forward

    def __call__(self, part: Pack, read: Read) -> Mapping[str, Tensor]:
        """What `read` says of the hidden states that predict; of one row where there is none. Collective."""
        outputs: Mapping[str, Tensor] = self.model(part, read)
        return outputs

    def pack(self, batch: TrainBatch, samples: Sequence[int]) -> Pack:
        """The micro-batch of these `samples`, as the model reads it."""
        return pack(batch, samples, current_device(), in_one_row=self.in_one_row)

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Before a forward with a backward; after the last one of a step the gradients are there.

        A small fp32 model on CPUs keeps its parameters whole until then, and sums gradients over ranks once.
        """
        if self._gathers_once:
            for shard in self._shards:
                shard.set_reshard_after_backward(is_last, recurse=False)
                shard.set_requires_gradient_sync(is_last, recurse=False)

    def rest(self) -> None:
        """After forwards without a backward: give up what FSDP2 has gathered."""
        for shard in self._shards:
            shard.reshard()

    def choose_packs(self) -> str:
        """Packs where they change nothing, else a row for each sequence; says which. Collective.

        ModelError where rows change something too.
        """
        attention.register()
        draw, size = torch.Generator().manual_seed(0), self.model.config.get_text_config().vocab_size
        prompts, responses = torch.tensor([_PROMPTS, _RESPONSES])
        tokens = torch.randint(0, size, (sum(_PROMPTS + _RESPONSES),), generator=draw)
        samples = tokens.split((prompts + responses).tolist())
        samples[1][: _PROMPTS[1]] = samples[0][: _PROMPTS[0]]
        batch = TrainBatch(
            tokens=tokens,
            prompt_lengths=prompts,
            response_lengths=responses,
            per_sample={"group": torch.tensor([0, 0, 1])},
        )
        with torch.no_grad():
            self._check_borrowed(size)
            alone = torch.cat([self._whole(one)[-n:] for one, n in zip(samples, _RESPONSES, strict=True)])
            last = self._whole(tokens)[-_RESPONSES[-1] :]
            limit = 1e-4 if self._is_exact else float((last - alone[-len(last) :]).abs().max()) / 4
            reason = self._apart(batch, alone, limit)
            self.rest()
        return reason

    def _check_borrowed(self, vocabulary: int) -> None:
        """Every rank computes by the same code, also where a kernel fails on one alone."""
        borrowed = BorrowedKernels(self.model)
        if borrowed.layers:
            with borrowed.checked():
                self._whole(torch.arange(PROBE_TOKENS) % vocabulary)
            if rank_most(not borrowed.is_kept) and borrowed.is_kept:
                borrowed.give_up("fail or differ on another rank")

    def _apart(self, batch: TrainBatch, alone: Tensor, limit: float) -> str:
        self.in_one_row = True
        why = self._try_packs(batch, alone, limit)
        if why is None:
            return "packs: its attention keeps their sequences apart"
        self.in_one_row = False
        self.model.set_attn_implementation(self._plain)
        gap = float((self._hidden(batch) - alone).abs().max())
        if not gap <= limit:
            raise ModelError(
                f"--model: in a batch, hidden states of a sequence are {gap:.2g} from those of it alone, so "
                "the trainer 'fsdp' cannot train this architecture."
            )
        return f"a row for each sequence: {why}"

    def _try_packs(self, batch: TrainBatch, alone: Tensor, limit: float) -> str | None:
        """Why packs change something; None: they don't.

        The rounding of bf16 may hide a state that leaks into the next sequence, but not that it changes when
        only the response before it does.
        """
        prompt, first, others = batch.tokens.tensor_split((_PROMPTS[0], _PROMPTS[0] + _RESPONSES[0]))
        other = replace(batch, tokens=torch.cat([prompt, first.flip(0), others]))
        try:
            self.model.set_attn_implementation(attention.NAME)
            hidden = self._hidden(batch)
            gap = float((hidden - alone).abs().max())
            leak = float((self._hidden(other) - hidden)[_RESPONSES[0] :].abs().max())
        except Exception as error:  # whatever a model says to an attention that it does not expect
            return f"its layers refuse packs ({type(error).__name__})"
        if gap <= limit and leak <= limit / 16:
            return None
        return f"in a pack its hidden states differ by {max(gap, leak):.2g}"

    def _hidden(self, batch: TrainBatch) -> Tensor:
        part = self.pack(batch, range(len(batch)))
        return self(part, lambda hidden: {"hidden": hidden})["hidden"].float()

    def _whole(self, tokens: Tensor) -> Tensor:
        """The hidden states of one sequence but its last token, by transformers' own attention."""
        states: Tensor = self.model(tokens[None].to(current_device()), None)[0, :-1].float()
        return states

    def _forward(self, part: Any, read: Read | None) -> Any:
        decoder = self.model.base_model
        if read is None:
            return decoder(input_ids=part, use_cache=False).last_hidden_state
        if self.in_one_row:
            with attention.packed(part.pieces, self._plain):
                output = decoder(input_ids=part.tokens, position_ids=part.positions, use_cache=False)
        else:
            output = decoder(input_ids=part.tokens, use_cache=False)
        rows = part.rows if part.rows.numel() else part.rows.new_zeros(1)
        return read(output.last_hidden_state.flatten(0, 1).index_select(0, rows))


def _recomputed(forward: Callable[..., Any], draws: bool, *args: Any, **options: Any) -> Any:
    """The forward of a block, again in the backward pass in place of its activations."""
    if not torch.is_grad_enabled():
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=draws, **options)
