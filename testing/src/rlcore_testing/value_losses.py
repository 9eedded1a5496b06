"""What every loss of a critic must fulfill, as a suite to subclass.

    class TestMyValueLoss(ValueLossConformance):
        part = Part(name="square", factory="acme.values:Square", config=SquareConfig())

Everything is computed by core's own `ValueObjective`, as `rlcore_testing.batches` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.trainer import LossResult
from rlcore.api.training import ValueInputs, ValueLoss
from rlcore.learning.critic import ValueObjective, with_value_weights
from rlcore_testing.batches import SEEDS, BatchConformance, compressed, seeded
from rlcore_testing.tensors import NAN, f64, responses

VALUES = "new_values"


class ValueLossConformance(BatchConformance):
    """Subclass it as `Test…` and give `value_loss` or `part`."""

    leaves: ClassVar[tuple[str, ...]] = (VALUES,)

    def value_loss(self) -> ValueLoss:
        """A new instance."""
        made: ValueLoss = self.part.build()
        return made

    def parts(self) -> Sequence[object]:
        return [self.value_loss()]

    def evaluate(self, leaves: Mapping[str, Tensor], batch: TrainBatch) -> LossResult:
        return ValueObjective(self.value_loss())(leaves[VALUES], batch)

    # --- the properties --------------------------------------------------------------------------------

    def test_the_gradient_is_right(self) -> None:
        """Against finite differences of the value."""
        for seed in SEEDS:
            batch = compressed(self._batch(seed))
            values_R = batch.per_token[VALUES].clone().requires_grad_()
            assert torch.autograd.gradcheck(
                lambda v, b=batch: self.evaluate({VALUES: v}, b).total, (values_R,)
            )

    def test_a_step_brings_values_nearer_to_the_returns(self) -> None:
        """Before the first update, when the values are the old ones."""
        for seed in SEEDS:
            batch = compressed(self._batch(seed))
            batch = batch.with_columns({VALUES: batch.per_token[Input.VALUES]})
            slope_R = self._run(batch).gradient[:, 0]
            gap_R = batch.per_token[VALUES] - batch.per_token["returns"]
            assert torch.equal(slope_R.sign(), gap_R.sign()), f"gradients {slope_R}, values - returns {gap_R}"

    def test_values_that_equal_the_returns_stay(self) -> None:
        batch = compressed(self._batch(0))
        right_R = batch.per_token["returns"].double()
        slope_R = self._run(batch.with_columns({VALUES: right_R, Input.VALUES: right_R})).gradient
        assert not slope_R.any(), f"a value that is the return has a gradient: {slope_R[:, 0].tolist()}"

    def test_values_far_off_are_finite(self) -> None:
        """±1e6: a critic begins anywhere."""
        far = f64(1e6, -1e6, 1e6, -1e6).requires_grad_()
        output = self.value_loss()(_inputs(responses([4]), far, f64(0, 0, 1e6, 1e6), f64(0, 0, 1, 1)))
        (slope,) = torch.autograd.grad(output.per_token.sum(), far)
        assert output.per_token.isfinite().all(), f"not finite: {output.per_token.tolist()}"
        assert slope.isfinite().all(), f"gradient not finite: {slope.tolist()}"

    def test_nan_of_a_live_token_is_not_hidden(self) -> None:
        """It must reach the loss, for there it stops the run."""
        batch = compressed(self._batch(0))
        values_R = batch.per_token[VALUES].clone()
        values_R[0] = NAN
        assert self._run(batch.with_columns({VALUES: values_R})).total.isnan(), "hidden"

    def test_it_is_a_pure_function(self) -> None:
        """A second call finds the same, and no input has changed."""
        batch = compressed(self._batch(0))
        columns = (
            batch.per_token[VALUES],
            batch.per_token[Input.VALUES],
            batch.per_token["returns"].double(),
        )
        inputs = _inputs(batch, *(column.clone() for column in columns))
        loss = self.value_loss()
        first, second = loss(inputs), loss(inputs)
        assert torch.equal(first.per_token, second.per_token), "a second call gave other values"
        for name, column in zip(("values", "old_values", "returns"), columns, strict=True):
            assert torch.equal(getattr(inputs, name), column), f"it changed {name}"

    def _batch(self, seed: int) -> TrainBatch:
        """The batch of a loss, with values within 1 of the returns; NaN behind the mask."""
        batch, draw = super()._batch(seed), seeded(seed)
        live_R = batch.per_token["loss_mask"] > 0

        def column(low: float, high: float) -> Tensor:
            values = low + (high - low) * torch.rand(len(live_R), generator=draw, dtype=torch.float64)
            return torch.where(live_R, values, NAN)

        returns_R = column(-1, 1)
        old_R = returns_R + column(-1, 1)
        columns = {"returns": returns_R, str(Input.VALUES): old_R, VALUES: old_R + column(-0.5, 0.5)}
        return with_value_weights(batch.with_columns(columns))


def _inputs(batch: TrainBatch, values: Tensor, old: Tensor, returns: Tensor) -> ValueInputs:
    mask_R = torch.ones(len(values))
    return ValueInputs(values=values, old_values=old, returns=returns, mask=mask_R, batch=batch)
