"""Losses of the policy ratio, each with its own trust region."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore import MAX_LOG_RATIO, LossInputs, LossOutput, TrainBatch, importance_ratio, log_ratio, where_live
from rlcore_grpo.config import CispoConfig, DppoConfig, KlCovConfig, PpoClipConfig, SapoConfig
from rlcore_toolkit import advantage_covariance, policy_gradient


class PpoClip:
    """PPO's clipped loss (https://arxiv.org/abs/1707.06347, equation 7).

    With r the ratio of new to old policy: max(-r A, -clip(r, 1 - low, 1 + high) A), the bounds chosen one by
    one (https://arxiv.org/abs/2503.14476). With `dual_clip` c, where A < 0: at most -c A
    (https://arxiv.org/abs/1912.09729).
    """

    def __init__(self, config: PpoClipConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        plain_R = -ratio_R * advantages_R
        clipped_R = -ratio_R.clamp(1 - config.clip_low, 1 + config.highest) * advantages_R
        loss_R = torch.maximum(plain_R, clipped_R)
        metrics: dict[str, Tensor] = {"clip_fraction": clipped_R > plain_R, "ratio_mean": ratio_R}
        if config.dual_clip is not None:
            bound_R = -config.dual_clip * advantages_R
            metrics["dual_clip_fraction"] = (advantages_R < 0) & (loss_R > bound_R)
            loss_R = torch.where(advantages_R < 0, torch.minimum(loss_R, bound_R), loss_R)
        return LossOutput(per_token=loss_R, metrics=metrics)


class Dppo:
    """DPPO's loss: the trust region is a bound of the divergence (https://arxiv.org/abs/2602.04879).

    -r A of each token, r the ratio of new to old policy. A token is left out where its update would go on
    away from the old policy (r > 1 with A > 0, r < 1 with A < 0) and the two are farther apart than allowed.
    They are compared as distributions over two events, this token p and any other: |p_new - p_old| (`tv`), or
    KL(p_old || p_new) (`kl`). A rare token may so change its ratio freely, and a frequent one may not.
    """

    def __init__(self, config: DppoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        far_R = self._divergence(inputs)
        rises_R = (advantages_R > 0) & (ratio_R > 1) & (far_R > config.high)
        falls_R = (advantages_R < 0) & (ratio_R < 1) & (far_R > config.low)
        dropped_R = rises_R | falls_R
        return LossOutput(
            per_token=(-ratio_R * advantages_R).masked_fill(dropped_R, 0.0),
            metrics={"clip_fraction": dropped_R, "divergence": far_R, "ratio_mean": ratio_R},
        )

    def _divergence(self, inputs: LossInputs) -> Tensor:
        """The divergence of the policies at each token, [R], without a gradient; 0 where not live."""
        new_R = where_live(inputs.log_probs.detach(), inputs.mask).clamp(max=0)
        old_R = where_live(inputs.old_log_probs, inputs.mask).clamp(max=0)
        if self._config.divergence == "tv":
            return (new_R.exp() - old_R.exp()).abs()
        gap_R = (old_R - new_R).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        rest_R, others_R = -torch.expm1(old_R), -torch.expm1(new_R)
        least = torch.finfo(new_R.dtype).tiny
        return old_R.exp() * gap_R + torch.xlogy(rest_R, rest_R.clamp(min=least) / others_R.clamp(min=least))


class KlCov:
    """KL-Cov's loss: a penalty on the few tokens that would make the policy certain.

    -r A of each token, r the ratio of new to old policy; on the `share` of the batch's live tokens, at least
    one, whose covariance of log-prob and advantage is largest (`rlcore_toolkit.advantage_covariance`, by the
    log-probs before the update), coef · |log r| more (https://arxiv.org/abs/2505.22617, equation 12).
    """

    def __init__(self, config: KlCovConfig) -> None:
        self._config = config

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        mask_R = batch.per_token["loss_mask"]
        covariance_R = advantage_covariance(
            batch.per_token["old_log_probs"], batch.per_token["advantages"], mask_R
        )
        live = (mask_R > 0).nonzero().flatten()
        count = max(1, int(self._config.share * len(live)))
        penalized_R = torch.zeros_like(mask_R)
        penalized_R[live[covariance_R[live].argsort(descending=True, stable=True)[:count]]] = 1
        return {"kl_cov_penalized": penalized_R, "kl_cov_covariance": covariance_R.float()}

    def __call__(self, inputs: LossInputs) -> LossOutput:
        columns, new_R = inputs.batch.per_token, inputs.log_probs
        ratio_R = importance_ratio(new_R, inputs.old_log_probs, inputs.mask)
        penalized_R = columns["kl_cov_penalized"].to(new_R.dtype)
        far_R = log_ratio(new_R, inputs.old_log_probs, inputs.mask).abs()
        penalty_R = torch.where(penalized_R > 0, far_R, torch.zeros_like(far_R))
        return LossOutput(
            per_token=-ratio_R * inputs.advantages + self._config.coef * penalty_R,
            metrics={
                "ratio_mean": ratio_R,
                "kl_cov_penalized": penalized_R,
                "kl_cov_covariance": columns["kl_cov_covariance"],
            },
        )


class Cispo:
    """CISPO's loss (https://arxiv.org/abs/2506.13585, equations 4 and 5).

    With r the ratio of new to old policy: -clip(r, 1 - low, 1 + high) A log π, the clipped ratio detached.
    Outside the bounds a token keeps the gradient of its log-prob, with the bound as its weight.
    """

    def __init__(self, config: CispoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio_R = importance_ratio(inputs.log_probs.detach(), inputs.old_log_probs, inputs.mask)
        weight_R = ratio_R.clamp(1 - self._config.clip_low, 1 + self._config.clip_high)
        return LossOutput(
            per_token=policy_gradient(inputs.log_probs, weight_R * inputs.advantages, inputs.mask),
            metrics={"clip_fraction": weight_R != ratio_R, "ratio_mean": ratio_R},
        )


class Sapo:
    """SAPO's loss (https://arxiv.org/abs/2511.20347).

    With r the ratio of new to old policy and p = sigmoid(τ (r - 1)): -(4 / τ) p A, where τ is `tau_pos` for
    A > 0 and `tau_neg` otherwise. The gradient is that of -r A times 4 p (1 - p), which is 1 on policy and
    fades to both sides.
    """

    def __init__(self, config: SapoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        advantages_R = inputs.advantages
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        positive_R = torch.full_like(ratio_R, self._config.tau_pos)
        tau_R = torch.where(advantages_R > 0, positive_R, self._config.tau_neg)
        open_R = torch.sigmoid(tau_R * (ratio_R - 1))
        return LossOutput(
            per_token=-4 / tau_R * open_R * advantages_R,
            metrics={"gate_mean": 4 * open_R * (1 - open_R), "ratio_mean": ratio_R},
        )
