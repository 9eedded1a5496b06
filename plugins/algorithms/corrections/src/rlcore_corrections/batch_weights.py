"""Corrections that compare a token with the whole batch: what they need to know of it are columns."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore import CorrectionInputs, TokenWeights, TrainBatch, segment_sum, where_live
from rlcore_corrections.config import ClipCovConfig, M2poConfig, SelfNormalizedConfig, TopEntropyConfig
from rlcore_corrections.weights import level_log_ratio
from rlcore_toolkit import advantage_covariance, truncated_weights


class SelfNormalized:
    """Self-normalized importance sampling: min(r, high) over its mean in the batch, so that the mean is 1.

    r = π_old / π_engine of the token, or the product over the live tokens of its sample; the mean is then
    over the samples that have a live token. The estimate is biased, and its variance is smaller (Owen, Monte
    Carlo theory, chapter 9.2: https://artowen.su.domains/mc/Ch-var-is.pdf).
    """

    def __init__(self, config: SelfNormalizedConfig) -> None:
        self._config = config

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        mask_R, segments_R = batch.per_token["loss_mask"], batch.segments
        log_ratio_R = level_log_ratio(_log_ratio(batch), mask_R, segments_R, len(batch), self._config.level)
        counted_R = mask_R.double()
        if self._config.level == "sequence":
            counted_R = counted_R / segment_sum(counted_R, segments_R, len(batch)).clamp(min=1)[segments_R]
        ratio_R = truncated_weights(log_ratio_R, 0.0, self._config.high)
        mean = (where_live(ratio_R, mask_R) * counted_R).sum() / counted_R.sum()
        return {"self_normalized_ratio": ratio_R.float(), "self_normalized_weight": (ratio_R / mean).float()}

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        names = ("self_normalized_ratio", "self_normalized_weight")
        ratio_R, weights_R = (inputs.batch.per_token[name].to(inputs.mask.dtype) for name in names)
        return TokenWeights(weights=weights_R, metrics=dict(zip(names, (ratio_R, weights_R), strict=True)))


class M2po:
    """Second-moment trust region: leaves out the tokens of the largest log(π_old / π_engine)².

    As few are left out as it takes for the mean over the others to be at most `high`
    (https://arxiv.org/abs/2510.01161). Tokens that are equally far are all left out, or none. The paper's is
    the policy of each update; here it is that before the first one: what several mini-batches add to the
    distance is the loss's own clip to bound.
    """

    def __init__(self, config: M2poConfig) -> None:
        self._config = config

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        live_R = batch.per_token["loss_mask"] > 0
        square_R = _log_ratio(batch).square()
        ascending = square_R[live_R].sort().values
        means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1)
        count = int((means <= self._config.high).sum())  # the means of ascending values ascend
        selection_R = live_R if count == len(ascending) else square_R < ascending[count]
        return {"m2po_square": square_R.float(), "m2po_kept": selection_R.float()}

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _selection_weights(inputs, "m2po", {"m2po_square": inputs.batch.per_token["m2po_square"]})


class TopEntropy:
    """Leaves out all but the `share` of the batch's live tokens at which the policy is least certain.

    The "forking tokens" of https://arxiv.org/abs/2506.01939, by the entropy before the update. Tokens that
    are as uncertain as the last of them are kept too.
    """

    def __init__(self, config: TopEntropyConfig) -> None:
        self._config = config

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        entropy_R, live_R = batch.per_token["old_entropy"], batch.per_token["loss_mask"] > 0
        descending = entropy_R[live_R].sort(descending=True).values
        count = max(1, int(self._config.share * len(descending)))
        return {"top_entropy_kept": (entropy_R >= descending[count - 1]).float()}

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _selection_weights(inputs, "top_entropy")


class ClipCov:
    """Clip-Cov: leaves out a few tokens that would make the policy certain (https://arxiv.org/abs/2505.22617).

    They are drawn, `share` of the batch's live tokens and at least one, from those whose covariance of
    log-prob and advantage (`rlcore_toolkit.advantage_covariance`, by the log-probs before the update) lies
    between `low` and `high`. The draw depends on the tokens of the batch alone: a run can be repeated.
    """

    def __init__(self, config: ClipCovConfig) -> None:
        self._config = config

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        config, mask_R = self._config, batch.per_token["loss_mask"]
        covariance_R = advantage_covariance(
            batch.per_token["old_log_probs"], batch.per_token["advantages"], mask_R
        )
        between_R = (covariance_R > config.low) & (covariance_R < config.high) & (mask_R > 0)
        candidates = between_R.nonzero().flatten()
        draw = torch.Generator().manual_seed(int(batch.tokens.sum()))
        count = max(1, int(config.share * float(mask_R.sum())))
        selection_R = torch.ones_like(mask_R)
        selection_R[candidates[torch.randperm(len(candidates), generator=draw)[:count]]] = 0
        return {"clip_cov_covariance": covariance_R.float(), "clip_cov_kept": selection_R}

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _selection_weights(
            inputs, "clip_cov", {"clip_cov_covariance": inputs.batch.per_token["clip_cov_covariance"]}
        )


def _log_ratio(batch: TrainBatch) -> Tensor:
    """log(π_old / π_engine), float64 [R]; 0 where not live."""
    columns, mask_R = batch.per_token, batch.per_token["loss_mask"]
    return where_live(columns["old_log_probs"].double() - columns["rollout_log_probs"].double(), mask_R)


def _selection_weights(
    inputs: CorrectionInputs, name: str, metrics: Mapping[str, Tensor] | None = None
) -> TokenWeights:
    """The column `NAME_kept` as weights, and the share of tokens that are left out as a metric."""
    selection_R = inputs.batch.per_token[f"{name}_kept"].to(inputs.mask.dtype)
    return TokenWeights(weights=selection_R, metrics={**(metrics or {}), f"{name}_dropped": 1 - selection_R})
