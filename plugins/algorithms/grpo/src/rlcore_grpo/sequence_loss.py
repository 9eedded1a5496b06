"""Losses of sequence ratios."""

import torch

from rlcore import MAX_LOG_RATIO, LossInputs, LossOutput, log_ratio, segment_sum
from rlcore_grpo.config import GmpoConfig, GspoConfig, VespoConfig
from rlcore_toolkit import policy_gradient, segment_mean


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


class Gmpo:
    """GMPO's loss: the geometric mean of clipped token ratios (https://arxiv.org/abs/2507.20673).

    The log-ratio of a token is clipped where that makes the objective smaller: at `clip_high` for A > 0, at
    -`clip_low` otherwise. With s = exp(their mean over the sample's live tokens), each token has the value
    -s A and, where it is not clipped, the gradient -s A of its own log-prob alone. Averaged over the tokens
    of a sample that share one A, that is the gradient of the paper's equation 4.
    """

    def __init__(self, config: GmpoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        token_R = log_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        low_R, high_R = token_R.clamp(min=-config.clip_low), token_R.clamp(max=config.clip_high)
        clipped_R = torch.where(advantages_R > 0, high_R, low_R)
        mean_B = segment_mean(clipped_R.detach(), inputs.mask, inputs.segments, inputs.samples)
        # the difference is 0: it carries the token's gradient and no value
        ratio_R = (mean_B[inputs.segments] + (clipped_R - clipped_R.detach())).exp()
        return LossOutput(
            per_token=-ratio_R * advantages_R,
            metrics={"clip_fraction": clipped_R.detach() != token_R.detach(), "ratio_mean": ratio_R},
        )


class Vespo:
    """VESPO's loss: the policy gradient, weighted by how far the sequence is off policy.

    With W the product of the token ratios of a sample: -W^k exp(λ (1 - W)) A log π_new. The weight is a
    constant, 1 on policy, and fades to both sides; k and λ belong to the sign of A
    (https://arxiv.org/abs/2602.10693).
    """

    def __init__(self, config: VespoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        token_R = log_ratio(inputs.log_probs.detach(), inputs.old_log_probs, inputs.mask)
        sum_B = segment_sum(token_R, inputs.segments, inputs.samples).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        sum_R = sum_B[inputs.segments]
        positive_R = advantages_R > 0
        k_R = torch.where(positive_R, torch.full_like(sum_R, config.k_pos), config.k_neg)
        lambda_R = torch.where(positive_R, torch.full_like(sum_R, config.lambda_pos), config.lambda_neg)
        weight_R = (k_R * sum_R + lambda_R * (1 - sum_R.exp())).exp()
        return LossOutput(
            per_token=policy_gradient(inputs.log_probs, weight_R * advantages_R, inputs.mask),
            metrics={"sequence_weight": weight_R, "ratio_mean": sum_R.exp()},
        )
