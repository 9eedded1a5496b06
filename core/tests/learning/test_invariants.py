"""The bounds of the first mini-batch, each met from either side and by itself, NaN included."""

import math
from typing import Any, Literal

import pytest

from rlcore import LogProbGapError, RunError, StepResult
from rlcore.learning.invariants import check_first_step

TOKENS, FRESH = 10.0, 5.0


def check(dtype: Literal["fp32", "bf16", "fp8"] = "fp32", **given: Any) -> None:
    """By the means of 10 tokens, 5 of them fresh; `gap_max` is that of the fresh ones, the bound 1e-4."""
    means = {"ppo_gap": 0.0, "kl_engine": 0.0, "kl_engine_k3": 0.0}
    means |= {name: value for name, value in given.items() if name in means}
    metrics = {
        "tokens": TOKENS,
        "fresh": FRESH,
        "ppo_gap": means["ppo_gap"] * TOKENS,
        "kl_engine": means["kl_engine"] * FRESH,
        "kl_engine_k3": means["kl_engine_k3"] * FRESH,
    }
    check_first_step(
        StepResult(loss=0.0, metrics=metrics, grad_norm=0.0, lr=0.0, finite=True),
        given.get("gap_max", 0.0),
        dtype=dtype,
        comparable=given.get("comparable", True),
        max_gap=1e-4,
        same_forward=given.get("same_forward", True),
    )


@pytest.mark.parametrize("gap", [1.1e-6, math.nan])
def test_two_forwards_that_differ(gap: float) -> None:
    check(ppo_gap=0.9e-6)
    with pytest.raises(RunError, match="Two forwards of the first mini-batch differ"):
        check(ppo_gap=gap)
    check(ppo_gap=gap, same_forward=False)


@pytest.mark.parametrize("gap", [1.1e-4, math.nan])
def test_the_largest_gap_in_fp32(gap: float) -> None:
    check(gap_max=0.9e-4, kl_engine=1.0, kl_engine_k3=1.0)
    with pytest.raises(LogProbGapError, match=r"of the 5 tokens of the first step: largest gap"):
        check(gap_max=gap)
    check(gap_max=gap, comparable=False)


@pytest.mark.parametrize(("mean", "k3"), [(0.021, 0.9e-3), (0.019, 1.1e-3), (math.nan, 0.0), (0.0, math.nan)])
def test_the_means_in_bf16(mean: float, k3: float) -> None:
    check("bf16", kl_engine=0.019, kl_engine_k3=0.9e-3, gap_max=1.0)
    with pytest.raises(LogProbGapError, match=r"mean gap .* \(bound 0\.02\), k3 .* \(bound 0\.001\)"):
        check("bf16", kl_engine=mean, kl_engine_k3=k3)
    check("bf16", kl_engine=mean, kl_engine_k3=k3, comparable=False)


@pytest.mark.parametrize(("mean", "k3"), [(0.21, 0.09), (0.19, 0.11), (math.nan, 0.0), (0.0, math.nan)])
def test_the_means_where_the_engine_holds_fp8(mean: float, k3: float) -> None:
    check("fp8", kl_engine=0.19, kl_engine_k3=0.09, gap_max=1.0)
    with pytest.raises(LogProbGapError, match=r"mean gap .* \(bound 0\.2\), k3 .* \(bound 0\.1\)"):
        check("fp8", kl_engine=mean, kl_engine_k3=k3)
