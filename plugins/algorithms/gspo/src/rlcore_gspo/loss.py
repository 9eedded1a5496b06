"""The clipped loss of sequence ratios."""

import torch

from rlcore import LossInputs, LossOutput, log_ratio, segment_mean
from rlcore_gspo.config import GspoConfig


class Gspo:
    """GSPO's loss in its token form (https://arxiv.org/abs/2507.18071, equations 13 and 14).

    The ratio s of a sample is exp of the mean log-ratio over its live tokens. Each token has the value
    max(-s A, -clip(s, 1 - low, 1 + high) A) and, where the clip does not act, the gradient -s A of its own
    log-prob alone. Averaged over the tokens of a sample that share one A, that is the gradient of GSPO itself
    (equation 5); where A differs between tokens, each token is credited with its own.
    """

    def __init__(self, config: GspoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        token_R = log_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        sequence_B = segment_mean(token_R.detach(), inputs.mask, inputs.segments, inputs.samples)
        # the difference is 0: it carries the token's gradient and no value
        ratio_R = (sequence_B[inputs.segments] + (token_R - token_R.detach())).exp()
        plain_R = -ratio_R * advantages_R
        clipped_R = -ratio_R.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages_R
        return LossOutput(
            per_token=torch.maximum(plain_R, clipped_R),
            metrics={"clip_fraction": clipped_R > plain_R, "ratio_mean": ratio_R},
        )
