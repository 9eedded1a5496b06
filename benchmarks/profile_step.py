"""Where a training step's time goes: the share outside megatron's forward and backward passes.

A whole `Learner.update` of one rank, GRPO's parts with two mini-batches (so that old log-probs need a forward
too), on 8 layers of width 256. A part's time is that of its calls, less that of other parts within them. The
passes of the log-probs from the logits count as outside, forward and backward.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from common import Row, machine, make_model, parser, publish, say, table, verdict

from rlcore.cpu.allocator import keep_memory
from rlcore.data.batch import TrainBatch
from rlcore.engines.process import free_port
from rlcore.learning import learner as learner_module
from rlcore.learning.forwards import Forwards
from rlcore.learning.learner import Learner
from rlcore.learning.objective import Objective
from rlcore.megatron import logprobs, parallel
from rlcore.megatron import role as role_module
from rlcore.megatron import scoring as scoring_module
from rlcore.megatron.role import Role
from rlcore.settings import LearnerSettings, OptimizerSettings
from rlcore.spec import ModelSpec, Part
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import GroupAdvantageConfig, PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_qwen.config import QwenConfig

VOCAB, GROUPS, GROUP, PROMPT, RESPONSE = 512, 8, 8, 16, 128
MEGATRON = "megatron's forward and backward"
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
    path = make_model(args.work / "model-profile", layers=args.layers, width=args.width, vocab=VOCAB)
    parallel.start(0, 1, "127.0.0.1", free_port())
    torch.set_num_threads(args.threads)
    keep_memory()
    part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge", config=QwenConfig())
    role = Role(ModelSpec(path=str(path), bridge=part), OptimizerSettings(lr=1e-5))
    updates = _learner(role, str(args.work))
    batch = _batch(role)
    steps = [_step(updates, batch, number) for number in range(args.steps + 1)][1:]
    parallel.stop()
    rows = _rows(steps)
    outside = 1 - rows[0]["share"]
    text = (
        f"{table(rows)}\n\nOutside megatron's forward and backward: {outside:.1%} (asked for: at most "
        f"{MOST:.0%}): {verdict(outside <= MOST)}."
    )
    publish("profile_step", facts, {"rows": rows, "outside": outside}, text, dry=args.dry)


def _learner(role: Role, folder: str) -> Learner:
    return Learner(
        role,
        loss=PpoClip(PpoClipConfig()),
        estimator=GroupAdvantage(GroupAdvantageConfig()),
        settings=LearnerSettings(
            minibatches=2,
            normalizer="per_rollout",
            max_response_tokens=RESPONSE,
            temperature=1.0,
            tokens_per_rank=8192,
            dtype="fp32",
            folder=folder,
        ),
    )


def _batch(role: Role) -> TrainBatch:
    """As a rollout gives it; the engine's log-probs are the trainer's."""
    samples = GROUPS * GROUP
    draw = torch.Generator().manual_seed(0)
    rows = torch.arange(samples)
    batch = TrainBatch(
        tokens=torch.randint(1, VOCAB, (samples * (PROMPT + RESPONSE),), generator=draw),
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

    with (
        patch.object(role_module, "get_forward_backward_func", scheduled),
        part(scoring_module, "vocab_parallel_log_probs", "log-probs and entropy of the logits"),
        patch.object(
            logprobs._FromLogits,
            "backward",
            staticmethod(clock.timed("log-probs and entropy of the logits", logprobs._FromLogits.backward)),
        ),
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


def _rows(steps: list[dict[str, float]]) -> list[Row]:
    names = sorted(steps[0], key=lambda name: (name != MEGATRON, -steps[0][name]))
    return [
        {
            "part": name,
            "s a step": statistics.median(step[name] for step in steps),
            "share": statistics.median(step[name] / sum(step.values()) for step in steps),
        }
        for name in names
    ]


if __name__ == "__main__":
    main()
