"""Where a training step's time goes: the share outside megatron's forward and backward passes.

A whole `Learner.update` of one rank, GRPO's parts with two mini-batches (so that old log-probs need a forward
too), on 8 layers of width 256, with a small and with a large vocabulary. A part's time is that of its calls,
less that of other parts within them. The passes of the log-probs from the logits count as outside, forward
and backward; the products of the output layer, which are made there a chunk at a time where the vocabulary is
large, do not: megatron's own output layer makes them too.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from common import Row, machine, make_model, parser, publish, say, table, verdict

from rlcore.api.batch import TrainBatch
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.learning import learner as learner_module
from rlcore.learning.forwards import Forwards
from rlcore.learning.learner import Learner
from rlcore.learning.objective import Objective
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import GroupAdvantageConfig, PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_machine import keep_memory
from rlcore_machine.network import free_port
from rlcore_megatron.mcore import logprobs, parallel, role as role_module, scoring as scoring_module
from rlcore_megatron.mcore.rank import data_rank
from rlcore_megatron.mcore.role import Role
from rlcore_qwen.config import QwenConfig
from rlcore_testing.learners import learner_settings

VOCABULARIES = (512, 32768)
GROUPS, GROUP, PROMPT, RESPONSE = 8, 8, 16, 128
MEGATRON = "megatron's forward and backward"
PRODUCTS = "the output layer's products, in chunks"
"""Of the hidden states in either pass, and of the chunks that the backward pass makes again.

The gradient of the matrix, a product of the same size, is booked under `LOG_PROBS` for what is made again.
"""
LOG_PROBS = "log-probs and entropy of the logits"
MOST = 0.10


class Clock:
    """Seconds of named parts, each without the parts that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its time booked under `name`."""

        def wrapped(*given: Any, **known: Any) -> Any:
            with self.part(name):
                return call(*given, **known)

        return wrapped

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The time of the block, less that of the parts within."""
        self._inner.append(0.0)
        begin = time.perf_counter()
        try:
            yield
        finally:
            whole = time.perf_counter() - begin
            own = whole - self._inner.pop()
            self._inner[-1] += whole
            self.seconds[name] = self.seconds.get(name, 0.0) + own


def main() -> None:
    """Several steps; the median share of each part."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=7, help="steps that count, after one that does not")
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--width", type=int, default=256)
    args = options.parse_args()
    facts = machine(args.threads)
    parallel.start(0, 1, "127.0.0.1", free_port())
    torch.set_num_threads(args.threads)
    keep_memory()
    rows = [row for vocab in VOCABULARIES for row in _profile(vocab, args)]
    parallel.stop()
    outside = {vocab: _outside(rows, vocab) for vocab in VOCABULARIES}
    found = ", ".join(f"{share:.1%} with {vocab} tokens" for vocab, share in outside.items())
    text = (
        f"{table(rows)}\n\nOutside megatron's forward and backward, and the output layer's products: {found} "
        f"(asked for: at most {MOST:.0%}): {verdict(max(outside.values()) <= MOST)}."
    )
    publish("profile_step", facts, {"rows": rows, "outside": outside}, text, dry=args.dry)


def _profile(vocab: int, args: Namespace) -> list[Row]:
    """The rows of a model with a vocabulary of this size."""
    folder = args.work / f"model-profile-{vocab}"
    path = make_model(folder, layers=args.layers, width=args.width, vocab=vocab)
    part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge", config=QwenConfig())
    role = Role(ModelSpec(path=str(path), bridge=part), OptimizerSettings(lr=1e-5))
    updates, batch = _learner(role, str(args.work)), _batch(role, vocab)
    say(f"vocabulary of {vocab}")
    return _rows(vocab, [_step(updates, batch, number) for number in range(args.steps + 1)][1:])


def _outside(rows: list[Row], vocab: int) -> float:
    mine: dict[str, float] = {row["part"]: row["share"] for row in rows if row["vocabulary"] == vocab}
    return 1 - mine[MEGATRON] - mine.get(PRODUCTS, 0.0)


def _learner(role: Role, folder: str) -> Learner:
    return Learner(
        role,
        loss=PpoClip(PpoClipConfig()),
        estimator=GroupAdvantage(GroupAdvantageConfig()),
        settings=learner_settings(
            minibatches=2,
            normalizer="per_rollout",
            max_response_tokens=RESPONSE,
            temperature=1.0,
            tokens_per_rank=8192,
            folder=folder,
        ),
        rank=data_rank(),
    )


def _batch(role: Role, vocab: int) -> TrainBatch:
    """As a rollout gives it; the engine's log-probs are the trainer's."""
    samples = GROUPS * GROUP
    draw = torch.Generator().manual_seed(0)
    rows = torch.arange(samples)
    batch = TrainBatch(
        tokens=torch.randint(1, vocab, (samples * (PROMPT + RESPONSE),), generator=draw),
        prompt_lengths=torch.full((samples,), PROMPT),
        response_lengths=torch.full((samples,), RESPONSE),
        per_token={"loss_mask": torch.ones(samples * RESPONSE), "rewards": torch.zeros(samples * RESPONSE)},
        per_sample={
            "position": rows,
            "group": rows // GROUP,
            "rollout": rows,
            "reward": torch.rand(samples, generator=draw),
        },
    )
    found = role.forward(batch, temperature=1.0, tokens_per_rank=8192)["log_probs"]
    return batch.with_columns({"rollout_log_probs": found})


def _step(updates: Learner, batch: TrainBatch, number: int) -> dict[str, float]:
    """Seconds of each part of one update."""
    clock = Clock()
    passes = vars(role_module)["get_forward_backward_func"]

    def scheduled() -> Callable[..., Any]:
        return clock.timed(MEGATRON, passes())

    def part(owner: Any, name: str, shown: str) -> Any:
        return patch.object(owner, name, clock.timed(shown, getattr(owner, name)))

    def backward(function: Any) -> Any:
        return patch.object(function, "backward", staticmethod(clock.timed(LOG_PROBS, function.backward)))

    with (
        patch.object(role_module, "get_forward_backward_func", scheduled),
        part(scoring_module, "vocab_parallel_log_probs", LOG_PROBS),
        backward(logprobs._FromLogits),
        backward(logprobs._FromHidden),
        part(logprobs, "times_transposed", PRODUCTS),
        part(logprobs, "_add_product", PRODUCTS),
        part(Objective, "__call__", "loss, corrections, metrics"),
        part(role_module, "pack", "packing"),
        part(role_module, "zero_gradients", "gradients to zero"),
        part(Role, "_step", "optimizer, clipping"),
        part(Learner, "_prepared", "advantages, weights"),
        part(Forwards, "columns", "old log-probs, around the forward"),
        part(learner_module, "select", "mini-batches"),
        clock.part("the rest"),
    ):
        updates.update(batch, step=number + 1, first=False)
    say(f"step {number}: {sum(clock.seconds.values()):.3f} s")
    return clock.seconds


def _rows(vocab: int, steps: list[dict[str, float]]) -> list[Row]:
    names = sorted(steps[0], key=lambda name: (name != MEGATRON, -steps[0][name]))
    return [
        {
            "vocabulary": vocab,
            "part": name,
            "s a step": statistics.median(step[name] for step in steps),
            "share": statistics.median(step[name] / sum(step.values()) for step in steps),
        }
        for name in names
    ]


if __name__ == "__main__":
    main()
