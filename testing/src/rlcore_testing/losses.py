"""What every loss must fulfill, as a suite to subclass: core relies on it, and so does whoever trains.

    class TestMyLoss(LossConformance):
        def loss(self) -> Loss:
            return MyLoss(MyLossConfig(clip_low=0.2, clip_high=0.2))

Everything is computed by core's own `Objective`, as `rlcore_testing.batches` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self
from unittest import SkipTest

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TrainsOn
from rlcore.api.trainer import LossResult
from rlcore.api.training import Loss, LossInputs
from rlcore.learning.advantages import with_batch_columns
from rlcore.learning.objective import Objective
from rlcore_testing.batches import SEEDS, BatchConformance, compressed
from rlcore_testing.columns import PAIRS
from rlcore_testing.conformance import Subject
from rlcore_testing.tensors import INF, NAN, f64, loss_inputs


class LossConformance(BatchConformance):
    """Subclass it as `Test…` and give `loss` or `part`.

    The clips of the loss should act at log-ratios up to 0.6.
    """

    policy_gradient: ClassVar[bool] = True
    """On policy (new and old log-probs are equal) the gradient in a token's log-prob is -A."""

    ratio: ClassVar[bool] = True
    """It compares new with old log-probs, so that it must bound their ratio."""

    may_detach: ClassVar[bool] = False
    """A part of the value may be detached, and nobody gives the paper's `gradient`."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """The config says what the loss learns by; of its gradient it says nothing."""
        config: Any = subject.part.config if subject.part else None
        samples = TrainsOn.ROLLOUTS in config.trains_on
        of_pairs = {"units": PAIRS} if config.trains_on == {TrainsOn.PAIRS} else {}
        return cls.with_values(
            part=subject.part,
            policy_gradient=samples and config.reads_advantages,
            ratio=samples and config.top_tokens is None,
            may_detach=True,
            **of_pairs,
        )

    def loss(self) -> Loss:
        """A new instance."""
        made: Loss = self.part.build()
        return made

    def parts(self) -> Sequence[object]:
        return [self.loss()]

    def evaluate(self, leaves: Mapping[str, Tensor], batch: TrainBatch) -> LossResult:
        return Objective(self.loss())(self._outputs(leaves, batch), batch)

    def gradient(self, inputs: LossInputs) -> Tensor | None:
        """Where the gradient is not that of the value (a part is detached): the paper's, [R].

        d(Σ per_token) / d log_probs. None: autograd is compared with finite differences of the value.
        """
        return None

    # --- the properties --------------------------------------------------------------------------------

    def test_the_gradient_is_right(self) -> None:
        """Against finite differences of the value, or against `gradient`."""
        for seed in SEEDS:
            batch = compressed(self._batch(seed))
            inputs = self._inputs(batch)
            expected = self.gradient(inputs)
            if expected is None:
                new_R = batch.per_token["new_log_probs"].clone().requires_grad_()
                right = torch.autograd.gradcheck(
                    lambda new, b=batch: self._total(b, new), (new_R,), raise_exception=not self.may_detach
                )
                if not right:
                    raise SkipTest("a part of its value is detached; a test class gives the right `gradient`")
                continue
            weighted = batch.per_token["weights"] * expected
            torch.testing.assert_close(self._run(batch).gradient[:, 0], weighted, atol=1e-12, rtol=1e-9)

    def test_on_policy_it_is_the_policy_gradient(self) -> None:
        if not self.policy_gradient:
            raise SkipTest("it is no policy gradient")
        batch = compressed(self._batch(0))
        batch = batch.with_columns({"old_log_probs": batch.per_token["new_log_probs"]})
        expected = -batch.per_token["weights"] * batch.per_token["advantages"].double()
        torch.testing.assert_close(self._run(batch).gradient[:, 0], expected, atol=1e-12, rtol=1e-9)

    def test_extreme_log_ratios_are_finite(self) -> None:
        """±1000, and ±inf where the advantage is 0."""
        if not self.ratio:
            raise SkipTest("it compares no ratio")
        new = f64(1000, -1000, 1000, -1000, INF, -INF).requires_grad_()
        inputs = self._with_columns(loss_inputs(new, f64(*[0] * 6), f64(1, 1, -1, -1, 0, 0), lengths=[1] * 6))
        output = self.loss()(inputs)
        assert output.per_token.isfinite().all(), f"not finite: {output.per_token.tolist()}"
        (gradient,) = torch.autograd.grad(output.per_token.sum(), new)
        assert gradient.isfinite().all(), f"gradient not finite: {gradient.tolist()}"

    def test_nan_of_a_live_token_is_not_hidden(self) -> None:
        """It must reach the loss, for there it stops the run."""
        batch = compressed(self._batch(0))
        for advantage in (1.0, -1.0, 0.0):
            changed = {name: batch.per_token[name].clone() for name in ("new_log_probs", "advantages")}
            changed["new_log_probs"][0], changed["advantages"][0] = NAN, advantage
            assert self._run(batch.with_columns(changed)).total.isnan(), f"hidden where A = {advantage}"

    def test_it_is_a_pure_function(self) -> None:
        """A second call finds the same, and no input has changed."""
        inputs, untouched = (self._inputs(compressed(self._batch(0))) for _ in range(2))
        loss = self.loss()
        first, second = loss(inputs), loss(inputs)
        assert torch.equal(first.per_token, second.per_token), "a second call gave other values"
        for name in ("log_probs", "old_log_probs", "rollout_log_probs", "advantages", "mask"):
            assert torch.equal(getattr(inputs, name), getattr(untouched, name)), f"it changed {name}"

    # --- how they are computed -------------------------------------------------------------------------

    def _total(self, batch: TrainBatch, new_R: Tensor) -> Tensor:
        return self.evaluate({"new_log_probs": new_R, "entropy": batch.per_token["entropy"]}, batch).total

    def _inputs(self, batch: TrainBatch) -> LossInputs:
        """What the loss sees of a batch without a masked token."""
        columns = batch.per_token
        inputs = loss_inputs(
            columns["new_log_probs"],
            columns["old_log_probs"],
            columns["advantages"].double(),
            lengths=batch.response_lengths.tolist(),
        )
        return replace(
            inputs,
            rollout_log_probs=columns["rollout_log_probs"],
            entropy=columns["entropy"],
            batch=batch,
            top_log_probs=self._chosen(columns["new_log_probs"], columns["loss_mask"]),
        )

    def _with_columns(self, inputs: LossInputs) -> LossInputs:
        columns = {
            "loss_mask": inputs.mask,
            "old_log_probs": inputs.old_log_probs,
            "advantages": inputs.advantages,
        }
        batch = self.columns(inputs.batch.with_columns(per_token=columns))
        return replace(inputs, batch=with_batch_columns(batch, [self.loss()]))
