"""What every correction must fulfill, as a suite to subclass.

    class TestMyCorrection(CorrectionConformance):
        part = Part(name="fade", factory="acme.fade:Fade", config=FadeConfig())

It weighs the tokens of a plain policy-gradient loss, through core's own `Objective`, as
`rlcore_testing.batches` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import LossResult
from rlcore.api.training import Correction, CorrectionInputs, LossInputs, LossOutput
from rlcore.learning.advantages import with_batch_columns
from rlcore.learning.objective import Objective
from rlcore_testing.batches import SEEDS, BatchConformance, compressed

OFF = 1000.0
"""A log-ratio that no `exp` holds."""


class CorrectionConformance(BatchConformance):
    """Subclass it as `Test…` and give `correction` or `part`."""

    def correction(self) -> Correction:
        """A new instance."""
        made: Correction = self.part.build()
        return made

    def parts(self) -> Sequence[object]:
        return [self.correction()]

    def evaluate(self, leaves: Mapping[str, Tensor], batch: TrainBatch) -> LossResult:
        objective = Objective(_policy_gradient, corrections=[self.correction()])
        return objective(self._outputs(leaves, batch), batch)

    # --- the properties --------------------------------------------------------------------------------

    def test_weights_are_finite_and_not_negative(self) -> None:
        """One for each token, however far the two policies are apart."""
        for seed in SEEDS:
            batch = compressed(self._batch(seed))
            for shift in (0.0, OFF, -OFF):
                rollout_R = batch.per_token["rollout_log_probs"] + shift
                weights_R = self._weights(self._anew(batch, rollout_log_probs=rollout_R))
                assert weights_R.isfinite().all(), f"log-ratio {-shift:g}: {weights_R.tolist()}"
                assert (weights_R >= 0).all(), f"negative: {weights_R.tolist()}"

    def test_equal_policies_need_no_correction(self) -> None:
        """Where engine, old and new policy agree, each weight is 1."""
        config: Any = self._config
        if config is not None and not config.weighs:
            raise SkipTest("its weights stand for no ratio: it leaves tokens out")
        batch = compressed(self._batch(0))
        agreed = dict.fromkeys(("new_log_probs", "rollout_log_probs"), batch.per_token["old_log_probs"])
        weights_R = self._weights(self._anew(batch, **agreed))
        torch.testing.assert_close(weights_R, torch.ones_like(weights_R), atol=1e-6, rtol=0)

    def test_it_is_a_pure_function(self) -> None:
        """A second call, and another instance, find the same, and no input has changed."""
        batch = compressed(self._batch(0))
        inputs, untouched = _inputs(batch), _inputs(compressed(self._batch(0)))
        correction = self.correction()
        first = correction.weigh(inputs).weights
        for again in (correction, self.correction()):
            assert torch.equal(again.weigh(inputs).weights, first), "a second call gave other weights"
        for name in ("log_probs", "old_log_probs", "rollout_log_probs", "advantages", "mask"):
            assert torch.equal(getattr(inputs, name), getattr(untouched, name)), f"it changed {name}"

    def _anew(self, batch: TrainBatch, **columns: Tensor) -> TrainBatch:
        """`batch` with other columns, from which those of the whole batch are made again."""
        kept = {name: column for name, column in batch.per_token.items() if name not in self._own(batch)}
        changed = TrainBatch(
            tokens=batch.tokens,
            prompt_lengths=batch.prompt_lengths,
            response_lengths=batch.response_lengths,
            per_token={**kept, **columns},
            per_sample=batch.per_sample,
        )
        return with_batch_columns(changed, self.parts())

    def _own(self, batch: TrainBatch) -> set[str]:
        """The columns that the correction has added."""
        correction: Any = self.correction()
        return set(correction.batch_columns(batch)) if hasattr(correction, "batch_columns") else set()

    def _weights(self, batch: TrainBatch) -> Tensor:
        return self.correction().weigh(_inputs(batch)).weights


def _inputs(batch: TrainBatch) -> CorrectionInputs:
    """What a correction sees of a batch without a masked token."""
    columns = batch.per_token
    return CorrectionInputs(
        log_probs=columns["new_log_probs"],
        old_log_probs=columns["old_log_probs"],
        rollout_log_probs=columns["rollout_log_probs"],
        advantages=columns["advantages"].double(),
        mask=columns["loss_mask"],
        segments=batch.segments,
        samples=len(batch),
        batch=batch,
    )


def _policy_gradient(inputs: LossInputs) -> LossOutput:
    return LossOutput(per_token=-inputs.advantages * inputs.log_probs)
