"""`rlcore.api.maths` against numbers worked out by hand from the papers' formulas, in float64 unless said."""

import math

import pytest
import torch
from torch import Tensor

from rlcore.api import maths

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def i64(*values: int) -> Tensor:
    return torch.tensor(values)


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), leaf)[0]


def close(found: Tensor, *expected: float, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found.reshape(-1), f64(*expected), atol=atol, rtol=0)


# --- masks ---------------------------------------------------------------------------------------------


def test_a_masked_mean_ignores_nan_in_masked_slots() -> None:
    """A masked slot, be it NaN, gives exactly 0, in the value and in the gradient."""
    x, mask = f64(1, NAN, 3, INF, NAN).requires_grad_(), f64(1, 0, 1, 0, 0)
    mean = maths.masked_mean(x, mask)
    close(mean, 2)
    close(gradient(mean, x), 0.5, 0, 0.5, 0, 0)
    assert maths.masked_mean(f64(NAN, NAN), f64(0, 0)) == 0


@pytest.mark.parametrize(
    ("values", "mask", "expected"),
    [
        ([5, NAN], [0, 0], [0, 0]),
        ([5, NAN], [1, 0], [5, 0]),
        ([1, 3], [1, 1], [-math.sqrt(0.5), math.sqrt(0.5)]),
        ([1, NAN, 3], [1, 0, 1], [-math.sqrt(0.5), 0, math.sqrt(0.5)]),
        ([2, 2], [1, 1], [0, 0]),
    ],
)
def test_whitening_guard(values: list[float], mask: list[float], expected: list[float]) -> None:
    """Bessel's correction; with fewer than two live tokens unchanged; [1, 3] gives +-.7071."""
    close(maths.whiten(f64(*values), f64(*mask)), *expected)


# --- ratios and KL -------------------------------------------------------------------------------------


def test_ratio_of_extreme_log_probs_is_finite() -> None:
    """Log-ratios of +-1000 and +-inf are finite, and harmless with an advantage of 0; a NaN stays."""
    new = f64(1000, -1000, INF, -INF, NAN, -1).requires_grad_()
    mask = f64(1, 1, 1, 1, 0, 1)
    ratio = maths.importance_ratio(new, f64(0, 0, 0, 0, NAN, -1), mask)
    assert torch.isfinite(ratio).all()
    assert ratio[0] == ratio[2] == math.exp(20)
    assert ratio[4] == 1
    close(gradient(ratio * f64(0, 0, 0, 0, 0, 2), new), 0, 0, 0, 0, 0, 2)
    assert maths.importance_ratio(f64(NAN), f64(0), f64(1)).isnan()


@pytest.mark.parametrize(
    ("kind", "expected", "slope"),
    [
        ("k1", [-1, 14, 29], [1, 1, 1]),
        ("k2", [0.5, 98, 420.5], [-1, 14, 29]),
        ("k3", [0.7183, 13, 28], [1 - math.e, 1, 1]),
        ("low_var_kl", [0.7183, 10, 10], [1 - math.e, 0, 0]),
    ],
)
def test_kl(kind: maths.KlKind, expected: list[float], slope: list[float]) -> None:
    """http://joschu.net/blog/kl-approx.html: lp=-1, ref=[0,-15,-30], then a NaN in a masked slot."""
    new = f64(-1, -1, -1, NAN).requires_grad_()
    values = maths.kl(new, f64(0, -15, -30, NAN), f64(1, 1, 1, 0), kind)
    close(values, *expected, 0)
    close(gradient(values, new), *slope, 0)


@pytest.mark.parametrize("kind", ["k2", "k3", "low_var_kl"])
def test_kl_of_equal_log_probs_is_exactly_zero(kind: maths.KlKind) -> None:
    assert maths.kl(f64(-3.7), f64(-3.7), f64(1), kind) == 0


# --- the reduction -------------------------------------------------------------------------------------


def test_token_weights() -> None:
    """Samples 0 and 1 are one rollout (2 + 1 live tokens), sample 2 another (1), sample 3 has none."""
    mask, segments, rollouts = f64(1, 1, 0, 1, 0, 1, 0), i64(0, 0, 0, 1, 1, 2, 3), i64(5, 5, 2, 9)

    def weights(normalizer: maths.Normalizer) -> Tensor:
        return maths.token_weights(mask, segments, rollouts, normalizer=normalizer, constant=10)

    sixth = 1 / 6
    close(weights("per_rollout"), sixth, sixth, 0, sixth, 0, 0.5, 0)
    close(weights("per_token"), 0.25, 0.25, 0, 0.25, 0, 0.25, 0)
    close(weights("per_prompt"), sixth, sixth, 0, sixth, 0, 0.5, 0)
    third = 1 / 30
    close(weights("constant"), third, third, 0, third, 0, third, 0)


@pytest.mark.parametrize("normalizer", ["per_rollout", "per_prompt", "per_token", "constant"])
def test_token_weights_of_nothing_live(normalizer: maths.Normalizer) -> None:
    """Fully masked: no weight and no NaN."""
    close(maths.token_weights(f64(0, 0), i64(0, 1), i64(0, 1), normalizer=normalizer, constant=4), 0, 0)
