"""The draws have the distribution that they should have, and depend on nothing but their key."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlcore_local.requests import SamplingParams
from rlcore_local.sampler import gather_draws, sample, uniforms

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.3, -1.0, -2.0, -8.0])
DRAWS = 20_000
CPU = torch.device("cpu")


def reference(
    temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """What is left of the distribution, worked out token by token (the logits are sorted already)."""
    weights = [math.exp(x / temperature) for x in LOGITS.tolist()]
    probs = [weight / sum(weights) for weight in weights]
    kept = []
    for rank, prob in enumerate(probs):
        out = (0 < top_k <= rank) or sum(probs[:rank]) > top_p or prob < min_p * probs[0]
        kept.append(0.0 if out else prob)
    return [one / sum(kept) for one in kept]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.8, "min_p": 0.1, "temperature": 1.3},
    ],
)
def test_frequencies_are_those_of_the_cut_distribution(params: dict[str, Any]) -> None:
    order = torch.randperm(len(LOGITS), generator=torch.Generator().manual_seed(0))
    logits = LOGITS[order].expand(DRAWS, -1)
    keys = np.random.default_rng(0).integers(0, 2**63, DRAWS).tolist()
    draws = gather_draws([SamplingParams(**params)] * DRAWS, keys, CPU)
    ids, logprobs = sample(logits, draws, np.zeros(DRAWS, dtype=np.uint64))
    wanted = reference(**params)
    counts = torch.bincount(order[ids], minlength=len(LOGITS)).tolist()
    for count, prob in zip(counts, wanted, strict=True):
        sigma = math.sqrt(prob * (1 - prob) / DRAWS)
        assert abs(count / DRAWS - prob) <= 5 * sigma
        assert prob > 0 or count == 0
    # Log-probs are of the whole tempered distribution, as SGLang's.
    whole = (logits / params.get("temperature", 1.0)).log_softmax(-1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs, whole)


def test_greedy_takes_the_likeliest_token_at_temperature_one() -> None:
    logits = torch.stack([LOGITS, LOGITS.flip(0)])
    draws = gather_draws([SamplingParams(temperature=0.0), SamplingParams(temperature=0.5)], [1, 2], CPU)
    ids, logprobs = sample(logits, draws, np.zeros(2, dtype=np.uint64))
    assert ids[0] == 0
    assert logprobs[0] == LOGITS.log_softmax(-1)[0]


def test_a_row_draws_the_same_in_any_company() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 300, generator=generator)
    params = [SamplingParams(temperature=0.5 + i / 40, top_k=20 if i % 3 else -1) for i in range(50)]
    counts = np.arange(50, dtype=np.uint64)
    ids, logprobs = sample(logits, gather_draws(params, list(range(50)), CPU), counts)
    for row in range(50):
        alone = gather_draws([params[row]], [row], CPU)
        one, its_logprob = sample(logits[row : row + 1], alone, counts[row : row + 1])
        assert one == ids[row]
        assert its_logprob == logprobs[row]


def test_uniforms_fill_the_unit_interval_without_correlation() -> None:
    keys = np.arange(4000, dtype=np.uint64)
    first, second = (uniforms(keys, np.full(4000, count, dtype=np.uint64)).squeeze(1) for count in (0, 1))
    assert first.min() >= 0
    assert first.max() < 1
    assert abs(first.mean() - 0.5) < 0.02
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.06
    assert abs(torch.corrcoef(torch.stack([first[:-1], first[1:]]))[0, 1]) < 0.06
