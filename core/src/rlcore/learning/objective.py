"""Core's part of a loss: masks, sums, entropy and KL.

The tokens' weights already contain the denominators (`rlcore.learning.advantages`). Shape suffixes as in
`rlcore.learning.maths`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.errors import faults_of, returned
from rlcore.api.part import part_name
from rlcore.api.run_config import KlOptions
from rlcore.api.trainer import LossResult, TokenOutputs
from rlcore.api.training import Correction, Loss, LossInputs, TokenWeights
from rlcore.learning.maths import importance_ratio, kl, where_live
from rlcore.learning.outputs import check_outputs, output_of, total_of, weighted_sums

PLACE = "place"
"""Column int64 [R]: the place of each token in the whole batch. It is there while log-probs are kept."""


@dataclass(eq=False)
class Objective:
    """Σ_t w_t · (c_t · loss_t + kl_coef · KL_t - entropy_coef · H_t) over the live tokens of a micro-batch.

    c_t is the product of the corrections' weights, 1 without any. It multiplies the loss only, not the KL or
    the entropy. It changes no denominator: a token of weight 0 still counts there. `rollout_as_old`: the
    engine's log-probs serve as the old ones. `kl`: the settings of KL_t, the KL to the reference; they may
    change between steps. KL_t is measured if the batch has `reference_log_probs`, and is in the loss if its
    place is there.

    The trainer calls it on the pipeline stage that has the logits. `LossResult.metrics` are sums over live
    tokens. `tokens` is their number. `fresh` is the number of those that the engine sampled with the weights
    before the update (column `fresh`; without it, all). Only on these are trainer and engine compared.
    """

    loss: Loss
    entropy_coef: float = 0.0
    _: KW_ONLY
    corrections: Sequence[Correction] = ()
    rollout_as_old: bool = False
    kl: KlOptions = field(default_factory=KlOptions)

    def __post_init__(self) -> None:
        self._gap_max: Tensor | None = None
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
        """`batch` must hold the columns of `prepare`, `loss_mask` and, if sampled, `rollout_log_probs`.

        Without a column `old_log_probs` this is the first update, so the old log-probs are the present ones,
        detached: value and gradient of the loss are the same.
        """
        inputs = self._inputs(outputs, batch)
        if PLACE in batch.per_token:
            # On the CPU: those of all micro-batches are kept until the step is over.
            self._kept.append((batch.per_token[PLACE].cpu(), inputs.log_probs.detach().float().cpu()))
        whose = f"The loss {part_name(self.loss)}"
        output = output_of(whose, self.loss, inputs)
        loss_R, named = output.per_token, dict(output.metrics)
        if self.corrections:
            loss_R = self._corrected(loss_R, inputs, named, output.weighted.keys())
        entropy_R = inputs.entropy
        if self.entropy_coef:
            assert entropy_R is not None, "an entropy bonus needs the entropy"
            loss_R = loss_R - self.entropy_coef * entropy_R
        if Input.REFERENCE_LOG_PROBS in batch.per_token:
            reference_R = batch.per_token[Input.REFERENCE_LOG_PROBS]
            named["kl_reference"] = kl(inputs.log_probs, reference_R, inputs.mask, self.kl.kl_estimator)
        if self.kl.kl_coef and self.kl.kl_place == "loss":
            assert "kl_reference" in named, "a KL term needs the reference's log-probs"
            kl_R = named["kl_reference"]
            # Unbiased: the samples are of the old policy, so the importance ratio corrects the estimate and
            # its gradient (https://arxiv.org/abs/2512.02556, section 3.1).
            ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
            loss_R = loss_R + self.kl.kl_coef * (ratio_R * kl_R if self.kl.kl_unbiased else kl_R)
        weights_R = batch.per_token["weights"]
        total = total_of(whose, loss_R, weights_R, inputs.mask, inputs.log_probs)
        with torch.no_grad():
            metrics = self._metrics(inputs, named)
        return LossResult(total=total, metrics={**metrics, **weighted_sums(output, weights_R, inputs.mask)})

    def take_gap_max(self) -> float:
        """Largest |trainer - engine| log-prob of a fresh token since the last call; 0 without such a token.

        It is kept here because the trainer adds metrics up, and a maximum is no sum.
        """
        value, self._gap_max = self._gap_max, None
        return 0.0 if value is None else float(value)

    def take_log_probs(self, count: int) -> Tensor:
        """The policy's log-probs of the tokens trained on since the last call: fp32 [count], in the order of
        `PLACE`.

        -inf for a token that this rank has not seen.
        """
        parts, self._kept = self._kept, []
        log_probs_R = torch.full((count,), -torch.inf)
        for place, part in parts:
            log_probs_R[place] = part
        return log_probs_R

    def _inputs(self, outputs: TokenOutputs, batch: TrainBatch) -> LossInputs:
        columns, mask_R = batch.per_token, batch.per_token["loss_mask"]
        new_R = where_live(outputs.log_probs, mask_R)
        rollout_R = columns.get("rollout_log_probs", new_R.detach())
        old_R = rollout_R if self.rollout_as_old else columns.get("old_log_probs", new_R.detach())
        entropy_R = outputs.entropy
        return LossInputs(
            log_probs=new_R,
            old_log_probs=where_live(old_R, mask_R),
            rollout_log_probs=where_live(rollout_R, mask_R),
            advantages=where_live(columns.get("advantages", torch.zeros_like(mask_R)), mask_R),
            mask=mask_R,
            segments=torch.repeat_interleave(batch.response_lengths),  # on the device of the batch
            samples=len(batch),
            entropy=None if entropy_R is None else where_live(entropy_R, mask_R),
            batch=batch,
            top_log_probs=None if outputs.chosen is None else where_live(outputs.chosen, mask_R[:, None]),
        )

    def _corrected(
        self, loss_R: Tensor, inputs: LossInputs, named: dict[str, Tensor], reserved: Collection[str]
    ) -> Tensor:
        """The loss times the corrections' weights.

        Adds their metrics to `named`; names in `reserved` are refused.
        """
        assert "rollout_log_probs" in inputs.batch.per_token, "a correction needs the engine's log-probs"
        # Detached: a weight is a constant of the step, and no correction may add to the gradient.
        constants = replace(inputs, log_probs=inputs.log_probs.detach(), entropy=None, top_log_probs=None)
        weight_R = torch.ones_like(constants.log_probs)
        for correction in self.corrections:
            whose = f"The correction {part_name(correction)}"
            with faults_of(whose):
                output = correction.weigh(constants)
            returned(whose, output, TokenWeights, "TokenWeights")
            check_outputs(
                whose,
                "the weights",
                output.weights,
                output.metrics,
                inputs.mask,
                reserved=named.keys() | reserved,
            )
            weight_R = weight_R * output.weights.detach()
            named |= output.metrics
        # A weight that is not finite must reach the loss, where it stops the run: only an exact 0 leaves out.
        return torch.where(weight_R == 0, torch.zeros_like(loss_R), weight_R * loss_R)

    def _metrics(self, inputs: LossInputs, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        old_R, rollout_R, mask_R = inputs.old_log_probs, inputs.rollout_log_probs, inputs.mask
        # engine against engine would say nothing of the trainer
        trainer_R = inputs.log_probs if self.rollout_as_old else old_R
        fresh_R = inputs.batch.per_token.get("fresh", torch.ones_like(mask_R)) * mask_R
        gap_R = where_live((trainer_R - rollout_R).abs(), fresh_R)
        if gap_R.numel():
            largest = gap_R.max()
            self._gap_max = largest if self._gap_max is None else torch.maximum(self._gap_max, largest)
        teacher_R = inputs.batch.per_token.get(Input.TEACHER_LOG_PROBS)
        of_sampling = {
            "ppo_kl": old_R - inputs.log_probs,
            "ppo_gap": (old_R - inputs.log_probs).abs(),
            "kl_engine": gap_R,
            "kl_engine_k3": kl(rollout_R, trainer_R, fresh_R, "k3"),
            "fresh": fresh_R,
        }
        values = {
            **(of_sampling if "rollout_log_probs" in inputs.batch.per_token else {}),
            **({} if teacher_R is None else {"kl_teacher": old_R - teacher_R}),
            **({} if inputs.entropy is None else {"entropy": inputs.entropy}),
            **{name: value.to(gap_R.dtype) for name, value in named.items()},
        }
        sums = {name: where_live(value, mask_R).sum() for name, value in values.items()}
        return {**sums, "tokens": mask_R.sum()}
