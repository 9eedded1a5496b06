"""What a trainer measures by itself becomes metrics of its role."""

import pytest

from rlcore.api.trainer import StepResult
from rlcore.learning.metrics import summary, trainer_metrics


def _step(**changes: object) -> StepResult:
    known = {"loss": 0.0, "metrics": {"tokens": 2.0}, "grad_norm": 0.0, "lr": 0.0, "finite": True}
    return StepResult(**{**known, **changes})  # type: ignore[arg-type] # of a table of values


def test_they_are_means_over_the_steps_that_have_them() -> None:
    steps = [_step(extras={"router_balance": 1.0, "draft": 3.0}), _step(extras={"draft": 5.0, "late": 7.0})]
    always = {"critic/loss": 0.0, "critic/grad_norm": 0.0, "critic/lr": 0.0}
    found = {"critic/router_balance": 1.0, "critic/draft": 4.0, "critic/late": 7.0}
    assert trainer_metrics("critic", steps) == {**always, **found}
    assert trainer_metrics("critic", [_step()]) == always
    assert summary(steps)["train/draft"] == pytest.approx(4.0)
