"""Draw one token a row. Rows do not influence each other, and there is no hidden state.

Each row draws by inverting the cumulative distribution at one uniform number, which a counter hash makes of
the row's key and the count of its tokens so far. So a sample is the same whatever else is in the batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlcore_local.requests import SamplingParams

UInts = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Draws:
    """The sampling parameters of `B` rows as tensors [B, 1].

    `keys`: [B], of the random numbers. `greedy`: [B], rows of temperature 0, whose `temperature` is 1.
    `scaled`: whether any temperature is not 1. `filtered`: [F], the rows that cut their distribution.
    """

    keys: UInts
    greedy: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    any_greedy: bool
    all_greedy: bool
    scaled: bool
    filtered: Tensor


def gather_draws(params: list[SamplingParams], keys: list[int], device: torch.device) -> Draws:
    """Lay out the parameters of the rows of a batch, for logits on `device`."""
    # SGLang too takes a temperature below this as 0.
    greedy = [param.temperature < 1e-6 for param in params]
    temperatures = [1.0 if cold else param.temperature for param, cold in zip(params, greedy, strict=True)]
    everything = 1 << 30

    def column(values: list[Any]) -> Tensor:
        return torch.tensor(values, device=device).unsqueeze(1)

    return Draws(
        keys=np.array(keys, dtype=np.uint64),
        greedy=torch.tensor(greedy, device=device),
        temperature=column(temperatures),
        top_k=column([param.top_k if param.top_k > 0 else everything for param in params]),
        top_p=column([param.top_p for param in params]),
        min_p=column([param.min_p for param in params]),
        any_greedy=any(greedy),
        all_greedy=all(greedy),
        scaled=any(temperature != 1.0 for temperature in temperatures),
        filtered=torch.tensor(
            [
                row
                for row, param in enumerate(params)
                if param.top_k > 0 or param.top_p < 1 or param.min_p > 0
            ],
            dtype=torch.int64,
            device=device,
        ),
    )


def uniforms(keys: UInts, counts: UInts) -> Tensor:
    """One number in [0, 1) for each (key, count): SplitMix64 of both, 40 bits kept. float64 [B, 1]."""
    with np.errstate(over="ignore"):
        state = keys + (counts + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return torch.from_numpy((state >> np.uint64(24)).astype(np.float64) * 2.0**-40).unsqueeze(1)


def sample(logits: Tensor, draws: Draws, counts: UInts) -> tuple[Tensor, Tensor]:
    """Draw a token in each row: (ids [B], log-probs [B] fp32).

    A log-prob is of log_softmax(logits / temperature) in fp32, *before* top-k, top-p and min-p cut the
    distribution (temperature 0: of temperature 1), as SGLang's sampler has it by default.
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits / draws.temperature if draws.scaled else logits, dim=-1)
    if draws.all_greedy:
        ids = logprobs.argmax(-1, keepdim=True)
    else:
        ids = _draw(logprobs, draws, uniforms(draws.keys, counts).to(logits.device))
        if draws.any_greedy:
            ids = torch.where(draws.greedy.unsqueeze(1), logprobs.argmax(-1, keepdim=True), ids)
    return ids.squeeze(1), logprobs.gather(1, ids).squeeze(1)


def _draw(logprobs: Tensor, draws: Draws, uniform: Tensor) -> Tensor:
    probs = logprobs.exp()
    ids = _invert(probs, uniform)
    if len(rows := draws.filtered):
        # Only these in the order of their probability: a row's tokens must not depend on what others ask for.
        ranked, order = probs[rows].sort(dim=-1, descending=True, stable=True)
        kept = cut(ranked, draws.top_k[rows], draws.top_p[rows], draws.min_p[rows])
        ids[rows] = order.gather(1, _invert(kept, uniform[rows]))
    return ids


def cut(sorted: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Zero what top-k, top-p and min-p leave out of probabilities sorted downwards, as SGLang's sampler does.

    top-p keeps the tokens before which less than or exactly `top_p` has been gathered, of the whole
    distribution (not of what top-k left); min-p keeps those of at least `min_p` times the likeliest.
    """
    before = sorted.cumsum(-1) - sorted
    rank = torch.arange(sorted.shape[1], device=sorted.device)
    # Rounding of the cumulative sum must not cut anything from a row that keeps everything.
    out = (rank >= top_k) | ((before > top_p) & (top_p < 1))
    out |= sorted < sorted[:, :1] * min_p
    return sorted.masked_fill(out, 0.0)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds `uniform` of the total; never one of weight 0."""
    # In fp32 the sum over a large vocabulary would swallow its rarest tokens.
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
