"""The losses of given responses and pairs."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from rlcore import Input, LossInputs, LossOutput, indices_of, segment_sum, where_live
from rlcore_offline.config import DpoConfig, SftConfig
from rlcore_toolkit import segment_mean

# Shape suffixes: _R response tokens, _B samples, _P pairs, _PC pairs by (rejected, chosen).


class Sft:
    """-log π of each token; by the normalizer `per_token` it is the cross-entropy of the batch."""

    def __init__(self, config: SftConfig) -> None:
        del config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=-inputs.log_probs)


def sigmoid_loss(logits_P: Tensor, label_smoothing: float) -> Tensor:
    """-(1-e) logsigmoid(x) - e logsigmoid(-x) of x = `logits_P`, the differences of rewards.

    DPO (https://arxiv.org/abs/2305.18290, equation 7); with a label smoothing e conservative DPO
    (https://ericmitchell.ai/cdpo.pdf, equation 3).
    """
    return -(1 - label_smoothing) * logsigmoid(logits_P) - label_smoothing * logsigmoid(-logits_P)


def ipo_loss(difference_P: Tensor, beta: float) -> Tensor:
    """(h - 1 / (2 beta))² of h = `difference_P`, those of log-ratios.

    IPO (https://arxiv.org/abs/2310.12036, equation 17).
    """
    return (difference_P - 1 / (2 * beta)).square()


class Dpo:
    """The loss of its pair on each token of both responses: a mean of rollout means is one over pairs.

    Core keeps a pair together (`unit`), so no split of a batch comes between its responses.
    """

    def __init__(self, config: DpoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config = self._config
        pair_B, _ = indices_of(inputs.batch.per_sample["group"])
        ratio_PC = self._log_ratios(inputs, pair_B)
        difference_P = ratio_PC[:, 1] - ratio_PC[:, 0]
        if config.form == "ipo":
            loss_P = ipo_loss(difference_P, config.beta)
        else:
            loss_P = sigmoid_loss(config.beta * difference_P, config.label_smoothing)
        reward_PC = config.beta * ratio_PC.detach()
        margin_P = reward_PC[:, 1] - reward_PC[:, 0]
        pair_R = pair_B[inputs.segments]
        return LossOutput(
            per_token=loss_P[pair_R],
            weighted={
                "reward_chosen": reward_PC[:, 1][pair_R],
                "reward_rejected": reward_PC[:, 0][pair_R],
                "reward_margin": margin_P[pair_R],
                "accuracy": (margin_P > 0)[pair_R],
            },
        )

    def _log_ratios(self, inputs: LossInputs, pair_B: Tensor) -> Tensor:
        """log π - log π_ref of each response, [P, 2]: the sum over its live tokens, or their mean."""
        reference_R = where_live(inputs.batch.per_token[Input.REFERENCE_LOG_PROBS], inputs.mask)
        # a response may be several samples
        slot_R = (2 * pair_B + inputs.batch.per_sample["chosen"])[inputs.segments]
        ratio_R = inputs.log_probs - reference_R
        slots = 2 * int(pair_B.max()) + 2 if len(pair_B) else 0
        if self._config.length_normalized:
            return segment_mean(ratio_R, inputs.mask, slot_R, slots).view(-1, 2)
        return segment_sum(ratio_R, slot_R, slots).view(-1, 2)
