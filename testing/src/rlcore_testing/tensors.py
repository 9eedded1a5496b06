"""Small tensors for tests of the parts of an algorithm, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.training import LossInputs, LossOutput

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Tensor:
    """A float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, *expected: float, atol: float = 1e-4) -> None:
    """Fails where the values of `found`, flattened, are not `expected`, within `atol`."""
    torch.testing.assert_close(found.detach().double().reshape(-1), f64(*expected), atol=atol, rtol=0)


def responses(lengths: Sequence[int]) -> TrainBatch:
    """Samples with responses of these lengths, each to a prompt of one token; no columns."""
    return TrainBatch(
        tokens=torch.zeros(sum(lengths) + len(lengths), dtype=torch.int64),
        prompt_lengths=torch.ones(len(lengths), dtype=torch.int64),
        response_lengths=torch.tensor(list(lengths), dtype=torch.int64),
    )


def scored(
    rewards: Sequence[float], groups: Sequence[int], rollouts: Sequence[int] | None = None
) -> TrainBatch:
    """What an estimator sees of samples with two live response tokens each; by default each is a rollout."""
    per_token = {"loss_mask": torch.ones(2 * len(rewards)), "rewards": torch.zeros(2 * len(rewards))}
    per_sample = {
        "reward": torch.tensor(rewards, dtype=torch.float32),
        "group": torch.tensor(groups),
        "rollout": torch.tensor(rollouts or range(len(rewards))),
    }
    return responses([2] * len(rewards)).with_columns(per_token, per_sample)


def one_each(advantages: Tensor) -> list[float]:
    """The advantage of each sample of `scored`, whose two tokens must agree."""
    assert advantages.dtype == torch.float32
    assert torch.equal(advantages[0::2], advantages[1::2])
    return advantages[0::2].tolist()


def loss_inputs(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    *,
    lengths: Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> LossInputs:
    """What a loss sees, by default of one sample that is live; the engine's log-probs are `old`."""
    batch = responses(lengths or [len(new)])
    return LossInputs(
        log_probs=new,
        old_log_probs=old,
        rollout_log_probs=old,
        advantages=advantages,
        mask=torch.ones_like(old) if mask is None else mask,
        segments=batch.segments,
        samples=len(batch),
        entropy=None,
        batch=batch,
    )


def gradient(output: LossOutput, new: Tensor) -> Tensor:
    """d(Σ per_token) / d new, [R]."""
    return torch.autograd.grad(output.per_token.sum(), new)[0]
