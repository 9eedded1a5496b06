"""The corrections against numbers worked out by hand, in float64. Log-ratios are of old to rollout."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rlcore import Config, Correction, CorrectionInputs
from rlcore_corrections.config import (
    DecoupledConfig,
    DivergenceConfig,
    IcePopConfig,
    MisConfig,
    OpsmConfig,
    TisConfig,
)
from rlcore_corrections.weights import Decoupled, Divergence, IcePop, Mis, Opsm, Tis
from rlcore_testing.tensors import responses

NAN, INF = math.nan, math.inf
KINDS: dict[str, tuple[Callable[[Any], Correction], type[Config]]] = {
    "tis": (Tis, TisConfig),
    "mis": (Mis, MisConfig),
    "icepop": (IcePop, IcePopConfig),
    "opsm": (Opsm, OpsmConfig),
    "decoupled": (Decoupled, DecoupledConfig),
    "divergence": (Divergence, DivergenceConfig),
}
EACH: list[tuple[str, dict[str, Any]]] = [
    ("tis", {}),
    ("icepop", {}),
    ("opsm", {}),
    ("decoupled", {"cap": 5.0}),
    *(
        ("divergence", {"level": level, "estimator": estimator})
        for level in ("token", "mean", "max")
        for estimator in ("k2", "k3")
    ),
    *(
        ("mis", {"level": level, "mode": mode, "veto": 1e-3})
        for level in ("token", "sequence", "geometric")
        for mode in ("truncate", "clip", "mask", "reject")
    ),
]


def f64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(
    rows: list[list[float]],
    *,
    moved: list[list[float]] | None = None,
    advantages: list[list[float]] | None = None,
    mask: list[list[float]] | None = None,
) -> CorrectionInputs:
    """Samples with these log-ratios of old to rollout, and with `moved` = old - new (default: 0)."""
    flat = [x for row in rows for x in row]

    def column(given: list[list[float]] | None, default: float) -> Tensor:
        return f64([x for row in given for x in row] if given else [default] * len(flat))

    old = f64([-1.0] * len(flat))
    columns = {
        "old_log_probs": old,
        "rollout_log_probs": old - f64(flat),
        "advantages": column(advantages, 1),
    }
    mask_R = column(mask, 1)
    batch = responses([len(row) for row in rows]).with_columns(per_token={**columns, "loss_mask": mask_R})
    return CorrectionInputs(
        log_probs=old - column(moved, 0),
        mask=mask_R,
        segments=batch.segments,
        samples=len(rows),
        batch=batch,
        **columns,
    )


def make(name: str, **settings: Any) -> Correction:
    factory, config = KINDS[name]
    return factory(config.model_validate(settings))


def weights(name: str, seen: CorrectionInputs, **settings: Any) -> list[float]:
    return [round(x, 4) for x in make(name, **settings).weigh(seen).weights.tolist()]


E_HALF, E_MINUS, E_ONE = 1.6487, 0.6065, 2.7183
ROW8 = [0.5, -0.5, 1.0]


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [
        ({"high": 2}, [ROW8], [E_HALF, E_MINUS, 2.0]),
        ({"high": 5}, [ROW8], [E_HALF, E_MINUS, E_ONE]),
        ({"low": 0.8, "high": 2}, [ROW8], [E_HALF, 0.8, 2.0]),
    ],
)
def test_tis(settings: dict[str, float], rows: list[list[float]], expected: list[float]) -> None:
    """Truncated importance sampling (https://fengyao.notion.site/off-policy-rl), token level, both bounds."""
    assert weights("tis", inputs(rows), **settings) == expected


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [
        ({"level": "token", "high": 2}, [ROW8], [E_HALF, E_MINUS, 2.0]),
        ({"level": "sequence", "high": 5}, [ROW8], [E_ONE] * 3),
        ({"level": "sequence", "high": 5}, [[1.0, 1.0, 1.0]], [5.0] * 3),
        ({"level": "geometric", "high": 5}, [ROW8], [1.3956] * 3),
        ({"level": "sequence", "high": 2}, [ROW8, [0.5], [-3.0]], [2.0] * 3 + [E_HALF, 0.0498]),
        ({"level": "token", "mode": "clip", "low": 0.8}, [ROW8], [E_HALF, 0.8, 2.0]),
        ({"level": "token", "mode": "clip", "high": 1.25}, [ROW8], [1.25, 0.8, 1.25]),
        ({"level": "token", "mode": "mask"}, [ROW8], [E_HALF, E_MINUS, 0.0]),
        ({"level": "token", "mode": "mask", "low": 0.8, "high": 5}, [ROW8], [E_HALF, 0.0, E_ONE]),
        ({"level": "token", "mode": "reject"}, [ROW8], [1.0, 1.0, 0.0]),
        ({"level": "sequence", "mode": "mask"}, [ROW8, [0.5], [-3.0]], [0.0] * 3 + [E_HALF, 0.0]),
        ({"level": "sequence", "mode": "clip"}, [ROW8, [0.5], [-3.0]], [2.0] * 3 + [E_HALF, 0.5]),
        ({"level": "sequence", "mode": "reject"}, [ROW8, [0.5], [-3.0]], [0.0] * 3 + [1.0, 0.0]),
        ({"level": "geometric", "mode": "clip", "high": 1.25}, [ROW8, [-3.0]], [1.25] * 3 + [0.8]),
        ({"level": "geometric", "mode": "reject"}, [ROW8, [-3.0]], [1.0] * 3 + [0.0]),
    ],
)
def test_mis(settings: dict[str, Any], rows: list[list[float]], expected: list[float]) -> None:
    """Each level and each mode (https://yingru.notion.site/When-Speed-Kills-Stability).

    e^.5 = 1.6487, e^-.5 = .6065, e^1 = 2.7183, e^(1/3) = 1.3956, e^-3 = .0498; without `low`, it is
    1 / high. A sample of one token is its own product and its own mean.
    """
    assert weights("mis", inputs(rows), **settings) == expected


def test_geometric_mask() -> None:
    """[.9, 1.1]: mean log-ratios 0, kept, and .5, dropped (the product of the first is inside as well)."""
    settings = {"level": "geometric", "mode": "mask", "low": 0.9, "high": 1.1}
    assert weights("mis", inputs([[0.1, -0.1, 0.0], [0.5, 0.5, 0.5]]), **settings) == [1.0] * 3 + [0.0] * 3


def test_veto() -> None:
    """One live token of a ratio below it drops its sample, whatever the level; a masked one does not."""
    seen = inputs([[0.0, -10.0], [0.0, -10.0], [0.0, 0.1]], mask=[[1, 1], [1, 0], [1, 1]])
    for level in ("token", "sequence", "geometric"):
        live = torch.tensor(weights("mis", seen, level=level, veto=1e-4)) * seen.mask
        assert (live == 0).tolist() == [True, True, False, True, False, False]
    kept = make("mis", veto=1e-5).weigh(seen)
    assert not kept.metrics["mis_vetoed"].any()
    vetoed = make("mis", veto=1e-4).weigh(seen)
    assert vetoed.metrics["mis_vetoed"].tolist() == [True, True, False, False, False, False]
    assert vetoed.metrics["mis_weight"].tolist() == vetoed.weights.tolist()


def test_icepop() -> None:
    """The ratio inside [.5, 5], else 0, no bound in its place (https://arxiv.org/abs/2510.18855)."""
    seen = inputs([[-0.5, 2.5, -0.2, -0.8]])
    assert weights("icepop", seen) == [E_MINUS, 0.0, 0.8187, 0.0]
    assert weights("icepop", seen, low=0.4, high=20) == [E_MINUS, 12.1825, 0.8187, 0.4493]


def test_opsm() -> None:
    """Dropped: A < 0 and mean(old - new) > delta (https://arxiv.org/abs/2512.02556)."""
    moved = [[0.375, -0.125], [0.375, -0.125], [-0.25, -0.25], [0.25]]
    advantages = [[-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0]]
    seen = inputs([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0]], moved=moved, advantages=advantages)
    assert weights("opsm", seen) == [0, 0, 1, 1, 1, 1, 0]
    assert weights("opsm", seen, delta=0.125) == [1, 1, 1, 1, 1, 1, 0]  # a mean of .125 is not above .125
    assert weights("opsm", seen, delta=0.25) == [1] * 7
    mixed = inputs([[0.0, 0.0]], moved=[[0.3, 0.3]], advantages=[[-1.0, 1.0]])
    assert weights("opsm", mixed) == [0, 1]


def test_opsm_takes_the_mean_over_live_tokens() -> None:
    seen = inputs([[0.0] * 4], moved=[[0.3, NAN, NAN, NAN]], advantages=[[-1.0] * 4], mask=[[1, 0, 0, 0]])
    assert weights("opsm", seen, delta=0.2)[0] == 0
    assert weights("opsm", seen, delta=0.4)[0] == 1


def test_decoupled() -> None:
    """π_prox / π_behav, whole; with a cap larger ones are dropped, not truncated (2110.00641, 2505.24298)."""
    assert weights("decoupled", inputs([[3.0, -5.0, 1.0]])) == [20.0855, 0.0067, E_ONE]
    assert weights("decoupled", inputs([[3.0, -5.0, 1.0]]), cap=5) == [0.0, 0.0067, E_ONE]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"high": 0.1}, [1, 0, 1, 1, 0, 1]),
        ({"high": 0.12}, [1, 0, 1, 1, 1, 1]),
        ({"high": 0.12, "estimator": "k2"}, [1, 0, 1, 1, 0, 1]),
        ({"high": 0.04, "level": "mean"}, [0, 0, 0, 1, 1, 1]),
        ({"high": 0.03, "level": "mean"}, [0, 0, 0, 0, 0, 0]),
        ({"high": 0.12, "level": "max"}, [0, 0, 0, 1, 1, 1]),
        ({"high": 0.12, "level": "max", "estimator": "k2"}, [0] * 6),
    ],
)
def test_divergence(settings: dict[str, Any], expected: list[float]) -> None:
    """Log-ratios 0, .5, 0 and 0, -.5, 0: k2 = .125 twice, k3 = e^.5 - 1.5 = .14872 and e^-.5 - .5 = .10653.

    Means of a sample: .04957 and .03551 of k3. Ratios of e^.5 and e^-.5 cancel; these do not.
    """
    found = weights("divergence", inputs([[0.0, 0.5, 0.0], [0.0, -0.5, 0.0]]), **settings)
    assert found == expected


@pytest.mark.parametrize(("name", "settings"), EACH)
def test_what_is_masked_does_not_matter(name: str, settings: dict[str, Any]) -> None:
    """NaN in every column of a masked slot: finite weights, and those of the live tokens as without it."""
    rows, mask = [[0.3, NAN, -0.2], [NAN], [0.4]], [[1.0, 0.0, 1.0], [0.0], [1.0]]
    moved = [[0.1, NAN, 0.1], [NAN], [0.2]]
    advantages = [[-1.0, NAN, 1.0], [NAN], [-1.0]]
    with_gaps = make(name, **settings).weigh(inputs(rows, moved=moved, advantages=advantages, mask=mask))
    without = make(name, **settings).weigh(
        inputs([[0.3, -0.2], [0.4]], moved=[[0.1, 0.1], [0.2]], advantages=[[-1.0, 1.0], [-1.0]])
    )
    live = f64([x for row in mask for x in row]) > 0
    assert torch.isfinite(with_gaps.weights).all()
    torch.testing.assert_close(with_gaps.weights[live], without.weights)
    for key, metric in without.metrics.items():
        torch.testing.assert_close(with_gaps.metrics[key][live], metric)


@pytest.mark.parametrize(("name", "settings"), EACH)
def test_a_sample_is_weighed_by_itself(name: str, settings: dict[str, Any]) -> None:
    rows = [[0.9, -0.4, 0.2], [0.6], [-8.0, 0.3]]
    moved, advantages = [[0.2, 0.1, 0.0], [-0.1], [0.4, 0.1]], [[-1.0] * 3, [1.0], [-2.0] * 2]
    correction = make(name, **settings)
    whole = correction.weigh(inputs(rows, moved=moved, advantages=advantages)).weights
    alone = [
        correction.weigh(inputs([row], moved=[m], advantages=[a])).weights
        for row, m, a in zip(rows, moved, advantages, strict=True)
    ]
    assert torch.equal(whole, torch.cat(alone))


@pytest.mark.parametrize(("name", "settings"), EACH)
def test_extremes_are_finite_and_a_nan_of_a_live_token_is_not_hidden(
    name: str, settings: dict[str, Any]
) -> None:
    found = make(name, **settings).weigh(inputs([[1000.0], [-1000.0], [INF], [-INF]]))
    assert torch.isfinite(found.weights).all()
    if name not in ("opsm",):  # it compares with the policy, whose NaN is in the loss
        assert make(name, **settings).weigh(inputs([[NAN]])).weights.isnan().all()


@pytest.mark.parametrize("name", ["tis", "mis", "icepop", "decoupled"])
def test_metrics(name: str) -> None:
    """The ratio before its bounds, the weight after them, and which bound was passed."""
    special: dict[str, dict[str, Any]] = {"decoupled": {"cap": 2.0}, "mis": {"mode": "mask", "low": 0.5}}
    bounds = special.get(name, {"low": 0.5, "high": 2})
    found = make(name, **bounds).weigh(inputs([[0.0, 1.0, -1.0]]))
    torch.testing.assert_close(found.metrics[f"{name}_ratio"], f64([0.0, 1.0, -1.0]).exp())
    assert torch.equal(found.metrics[f"{name}_weight"], found.weights)
    assert found.metrics[f"{name}_above"].tolist() == [False, True, False]
    assert found.metrics[f"{name}_below"].tolist() == [False, False, name != "decoupled"]


def test_bounds_that_have_no_effect_are_refused() -> None:
    with pytest.raises(ValidationError, match="low has no effect with mode truncate"):
        MisConfig(mode="truncate", low=0.5)
    for config in (TisConfig, IcePopConfig):
        with pytest.raises(ValidationError, match=r"low \(3\) is above high \(2\)"):
            config.model_validate({"low": 3, "high": 2})
    with pytest.raises(ValidationError, match=r"low \(1.25\) is above high \(0.8\)"):
        MisConfig(mode="mask", high=0.8)
