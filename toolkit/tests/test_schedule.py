"""Learning rates worked out by hand."""

import pytest

from rlcore import LrSchedule, OptimizerSettings
from rlcore_toolkit import learning_rate


def _rates(schedule: LrSchedule, warmup: int, steps: int = 8) -> list[float]:
    settings = OptimizerSettings(lr=1.0, lr_schedule=schedule, warmup_steps=warmup, total_steps=6, min_lr=0.1)
    return [learning_rate(settings, step) for step in range(steps)]


def test_constant() -> None:
    assert _rates("constant", 0) == [1.0] * 8
    assert _rates("constant", 4, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_the_floor_and_stays() -> None:
    expected = [0.5, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]
    assert _rates("linear", 2) == pytest.approx(expected)


def test_cosine_falls_to_the_floor_and_stays() -> None:
    expected = [0.5, 1.0, 1.0, 0.1 + 0.45 * (1 + 2**-0.5), 0.55, 0.1 + 0.45 * (1 - 2**-0.5), 0.1, 0.1]
    assert _rates("cosine", 2) == pytest.approx(expected)


def test_no_step_is_wasted_on_a_rate_of_zero() -> None:
    assert min(_rates("linear", 3, 5)) > 0


def test_warmup_longer_than_the_run_is_no_error() -> None:
    settings = OptimizerSettings(lr=1.0, lr_schedule="cosine", warmup_steps=10, total_steps=5)
    assert learning_rate(settings, 4) == 0.5
