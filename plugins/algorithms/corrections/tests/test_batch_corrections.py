"""Corrections that compare a token with the whole batch, against numbers worked out by hand, in float64."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore import BatchColumns, Correction, CorrectionInputs, PluginError, RunError, TrainBatch
from rlcore.learning.advantages import with_batch_columns
from rlcore_corrections.batch_weights import ClipCov, M2po, SelfNormalized, TopEntropy
from rlcore_corrections.config import ClipCovConfig, M2poConfig, SelfNormalizedConfig, TopEntropyConfig
from rlcore_testing.tensors import f64, responses


def batch_of(
    lengths: Sequence[int], mask: Sequence[float] | None = None, **columns: Sequence[float]
) -> TrainBatch:
    """Samples of these lengths; what is not live is NaN in every column."""
    mask_R = f64(*(mask or [1.0] * sum(lengths)))
    found = {name: torch.where(mask_R > 0, f64(*values), torch.nan) for name, values in columns.items()}
    return responses(list(lengths)).with_columns(per_token={**found, "loss_mask": mask_R})


def weighed(correction: Correction, batch: TrainBatch) -> list[float]:
    """The weights of the batch's tokens, found one sample at a time."""
    whole = with_batch_columns(batch, [correction])
    found: list[Tensor] = []
    for row in range(len(whole)):
        part = whole.select([row])
        none = torch.zeros_like(part.per_token["loss_mask"])
        inputs = CorrectionInputs(
            log_probs=none,
            old_log_probs=none,
            rollout_log_probs=none,
            advantages=none,
            mask=part.per_token["loss_mask"],
            segments=part.segments,
            samples=1,
            batch=part,
        )
        found.append(correction.weigh(inputs).weights)
    return [round(x, 4) for x in torch.cat(found).tolist()]


def ratios(rows: Sequence[Sequence[float]], mask: Sequence[float] | None = None) -> TrainBatch:
    """Samples with these log-ratios of old to rollout."""
    flat = [x for row in rows for x in row]
    lengths = [len(row) for row in rows]
    return batch_of(lengths, mask, old_log_probs=[x - 3 for x in flat], rollout_log_probs=[-3.0] * len(flat))


@pytest.mark.parametrize(
    ("level", "rows", "mask", "expected"),
    [
        # e^.5, e^-.5 and 2 over their mean 1.4184
        ("token", [[0.5, -0.5], [1.0]], None, [1.1624, 0.4276, 1.4100]),
        ("token", [[0.5, -0.5], [1.0]], [1, 1, 0], [1.4621, 0.5379, 0.0]),
        # products 2 (e^1, bounded) and e^-1 over their mean 1.1839, of two samples and not of four tokens
        ("sequence", [[0.5, -0.5, 1.0], [-1.0]], None, [1.6893, 1.6893, 1.6893, 0.3107]),
    ],
)
def test_self_normalized(
    level: str, rows: list[list[float]], mask: list[float] | None, expected: list[float]
) -> None:
    config = SelfNormalizedConfig.model_validate({"level": level})
    assert weighed(SelfNormalized(config), ratios(rows, mask)) == expected


@pytest.mark.parametrize(
    ("high", "rows", "expected"),
    [
        # squares .01 .04 .09 .16, whose ascending means are .01 .025 .047 .075
        (0.04, [[0.1, 0.3], [0.2, -0.4]], [1, 0, 1, 0]),
        (0.05, [[0.1, 0.3], [0.2, -0.4]], [1, 1, 1, 0]),
        (0.08, [[0.1, 0.3], [0.2, -0.4]], [1, 1, 1, 1]),
        (0.06, [[0.1, 0.3], [-0.3]], [1, 0, 0]),  # two that are equally far: (.01 + .09) / 2 would do
        (0.04, [[0.3], [0.4]], [0, 0]),
    ],
)
def test_m2po(high: float, rows: list[list[float]], expected: list[float]) -> None:
    """https://arxiv.org/abs/2510.01161"""
    assert weighed(M2po(M2poConfig(high=high)), ratios(rows)) == expected


def test_m2po_does_not_count_what_is_not_live() -> None:
    assert weighed(M2po(M2poConfig(high=0.04)), ratios([[0.1, 0.3], [0.0]], [1, 1, 0])) == [1, 0, 0]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.2, [0, 1, 0, 1, 0]), (0.6, [0, 1, 1, 1, 0]), (1.0, [1, 1, 1, 1, 1]), (0.01, [0, 1, 0, 1, 0])],
)
def test_top_entropy(share: float, expected: list[float]) -> None:
    """https://arxiv.org/abs/2506.01939; the two of the highest entropy are equal, and stay together."""
    batch = batch_of([3, 2], old_entropy=[0.1, 0.9, 0.5, 0.9, 0.2])
    assert weighed(TopEntropy(TopEntropyConfig(share=share)), batch) == expected


def test_top_entropy_is_a_share_of_the_live_tokens() -> None:
    batch = batch_of([4, 1], [0, 1, 1, 1, 1], old_entropy=[9.0, 0.2, 0.5, 0.4, 0.3])
    assert weighed(TopEntropy(TopEntropyConfig(share=0.5)), batch) == [0, 0, 1, 1, 0]


COVARIANT = {
    "old_log_probs": [0.0, -1.0, -2.0, -3.0, -4.0],
    "advantages": [2.0, 1.0, 0.0, -1.0, -2.0],
}
"""Deviations from the means -2 and 0: covariances 4 1 0 1 4."""


@pytest.mark.parametrize(
    ("settings", "dropped"),
    [
        ({"low": 0.5, "high": 2, "share": 0.4}, {1, 3}),
        ({"low": 0.5, "high": 5, "share": 1.0}, {0, 1, 3, 4}),
        ({"low": 1, "high": 4, "share": 1.0}, set()),  # the bounds are none of it
        ({"low": 5, "high": 6, "share": 1.0}, set()),
    ],
)
def test_clip_cov(settings: dict[str, float], dropped: set[int]) -> None:
    """https://arxiv.org/abs/2505.22617, equation 11"""
    found = weighed(ClipCov(ClipCovConfig.model_validate(settings)), batch_of([2, 3], **COVARIANT))
    assert {place for place, weight in enumerate(found) if not weight} == dropped


def test_clip_cov_draws_as_many_as_asked_and_the_same_again() -> None:
    """At least one; another batch, another draw."""
    draws = set()
    for count in range(12):
        batch = batch_of([2, 3], **COVARIANT)
        batch.tokens[0] = count
        found = weighed(ClipCov(ClipCovConfig(low=0.5)), batch)
        assert found == weighed(ClipCov(ClipCovConfig(low=0.5)), batch)
        assert sorted(found) == [0, 1, 1, 1, 1]
        draws.add(tuple(found))
    assert len(draws) > 1
    two = weighed(ClipCov(ClipCovConfig(low=0.5, share=0.4)), batch_of([2, 3], **COVARIANT))
    assert sorted(two) == [0, 0, 1, 1, 1]


class Bad(BatchColumns):
    def __init__(self, name: str, values: Tensor) -> None:
        self._column = {name: values}

    def batch_columns(self, batch: TrainBatch) -> dict[str, Tensor]:
        return self._column


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("old_log_probs", f64(1, 2), "returned the column 'old_log_probs', which the batch has already"),
        ("mine", f64(1), r"'mine' as float64 \[1\]; expected \[2\], one value for each response token"),
        ("mine", f64(1, torch.nan), "'mine' with values that are not finite among the tokens to train on"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(name: str, values: Tensor, sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        with_batch_columns(batch_of([2], old_log_probs=[0, 0]), [Bad(name, values)])


def test_columns_that_are_none_are_refused() -> None:
    class Forgets(Bad):
        def batch_columns(self, batch: TrainBatch) -> Any:
            return None

    with pytest.raises(PluginError, match=r"^.*Forgets.* returned None; expected columns by name\.$"):
        with_batch_columns(batch_of([2]), [Forgets("mine", f64(1, 2))])


def test_a_column_is_clean_where_it_is_not_live() -> None:
    found = with_batch_columns(batch_of([2], [1, 0]), [Bad("mine", f64(1, torch.nan))])
    assert found.per_token["mine"].tolist() == [1, 0]
