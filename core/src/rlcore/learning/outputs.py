"""Checks of what the parts of an algorithm return: shapes, dtypes, finite values, names of metrics."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import PluginError, RunError, described, faults_of, returned
from rlcore.api.part import part_name
from rlcore.api.training import AdvantageEstimator, Loss, LossOutput, ValueLoss
from rlcore.learning.maths import where_live
from rlcore.learning.metrics import WEIGHTED, core_metrics


def checked_estimate(batch: TrainBatch, estimator: AdvantageEstimator, output: object) -> Tensor:
    """The estimator's `output`, detached, 0 where not live.

    `RunError` where it is no float32 [R] or not finite, `PluginError` where it is no tensor.
    """
    whose, mask_R = f"The advantage estimator {part_name(estimator)}", batch.per_token["loss_mask"]
    expected = f"float32 {list(mask_R.shape)}, one value for each response token"
    value_R = returned(whose, output, Tensor, f"a tensor of {expected}, or an AdvantageOutput of two")
    if value_R.shape != mask_R.shape or value_R.dtype != torch.float32:
        raise RunError(f"{whose} returned {_kind(value_R)}; expected {expected}.")
    value_R = where_live(value_R.detach(), mask_R)
    bad = int((~torch.isfinite(value_R)).sum())
    if bad:
        raise RunError(
            f"{whose} returned {bad} values that are not finite "
            f"among the {int(mask_R.sum())} tokens to train on."
        )
    return value_R


def checked_columns(batch: TrainBatch, part: object, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The `columns` of a part, detached, 0 where not live. `RunError` where one does not fit the batch.

    `PluginError` where they are no mapping.
    """
    returned(part_name(part), columns, Mapping, "columns by name")  # type: ignore[type-abstract] # for isinstance
    mask_R, checked = batch.per_token["loss_mask"], {}
    for name, value_R in columns.items():
        whose = f"{part_name(part)} returned the column {name!r}"
        if name in batch.per_token or name in batch.per_sample:
            raise RunError(f"{whose}, which the batch has already.")
        _check_shape(f"{whose} as {_kind(value_R)}", value_R, mask_R)
        checked[name] = where_live(value_R.detach(), mask_R)
        if not bool(torch.isfinite(checked[name]).all()):
            raise RunError(f"{whose} with values that are not finite among the tokens to train on.")
    return checked


def check_outputs(
    whose: str,
    what: str,
    values_R: Tensor,
    metrics: Mapping[str, Tensor],
    mask_R: Tensor,
    *,
    reserved: Collection[str] = (),
    role: str = "train",
) -> None:
    """Raises RunError where a part returned another shape, or a metric of a name that is in use.

    PluginError where one of the values is no tensor.

    `reserved`: names of other parts' metrics. `role`: what the names of the metrics begin with.
    """
    values = {what: values_R} | {f"metric {name!r}": value_R for name, value_R in metrics.items()}
    for name, value_R in values.items():
        _check_shape(f"{whose} returned {_kind(value_R)} for {name}", value_R, mask_R)
    core_names = core_metrics(role)
    for name in sorted(metrics):
        if name in core_names:
            raise RunError(f"{whose} returned the metric {name!r}, which is core's own.")
        if name in reserved:
            raise RunError(
                f"{whose} returned the metric {name!r}, which another part of the run returns too."
            )


def output_of(whose: str, loss: Loss | ValueLoss, inputs: Any, *, role: str = "train") -> LossOutput:
    """The output of `loss` for `inputs`, which `check_outputs` has checked."""
    with faults_of(whose):
        output = returned(whose, loss(inputs), LossOutput, "a LossOutput")
        metrics = {**output.metrics, **output.weighted}
    for name in output.metrics.keys() & output.weighted.keys():
        raise RunError(f"{whose} returned the metric {name!r} twice: among `metrics` and among `weighted`.")
    check_outputs(whose, "the loss", output.per_token, metrics, inputs.mask, role=role)
    return output


def total_of(whose: str, loss_R: Tensor, weights_R: Tensor, mask_R: Tensor, computed_R: Tensor) -> Tensor:
    """The loss of the live tokens, weighted and summed.

    PluginError where it is not 0 and does not depend on `computed_R`, which the model computed.
    """
    weighted_R = where_live(weights_R * loss_R, mask_R)
    # Not of the sum, in which advantages of both signs cancel.
    if computed_R.requires_grad and not weighted_R.requires_grad and bool((weighted_R != 0).any()):
        raise PluginError(
            f"{whose} returned values without a gradient, so nothing would be learned. Compute them from the "
            "model's outputs, without detach() or torch.no_grad()."
        )
    return weighted_R.sum()


@torch.no_grad()
def weighted_sums(output: LossOutput, weights_R: Tensor, mask_R: Tensor) -> dict[str, Tensor]:
    """The metrics that the loss wants summed with the tokens' weights."""
    values = {name: weights_R * value_R.to(weights_R.dtype) for name, value_R in output.weighted.items()}
    return {WEIGHTED + name: where_live(value_R, mask_R).sum() for name, value_R in values.items()}


def _check_shape(subject: str, value_R: object, mask_R: Tensor) -> None:
    """PluginError where it is no tensor, RunError where its shape is not [R]; they begin with `subject`."""
    expected = f"{list(mask_R.shape)}, one value for each response token"
    if not isinstance(value_R, Tensor):
        raise PluginError(f"{subject}; expected a tensor {expected}.")
    if value_R.shape != mask_R.shape:
        raise RunError(f"{subject}; expected {expected}.")


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return described(value)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
