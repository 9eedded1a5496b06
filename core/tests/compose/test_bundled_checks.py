"""Choices of the bundled parts that would do nothing, or something else than they say, are refused."""

from typing import Any

import pytest
from refusals import Case, cases

from rlcore.api.errors import ConfigError
from rlcore.compose.resolved import Resolved
from rlcore.config.layers import Layer
from rlcore.plugins.loader import load
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select
from rlcore_grpo.config import PpoClipConfig

PLUGINS = load()


def resolved(algo: str, **given: Any) -> Resolved:
    """The settings of `rlcore train --algo ALGO --model qwen3` and these flags (`__` for a dot)."""
    values = {"algo": algo, "model": "qwen3", "engine": "local"} | {
        name.replace("__", "."): given[name] for name in given
    }
    return resolve(select(PLUGINS.registry, None, Layer(label="", values=values)))


@cases("bundled parts")
def test_what_does_not_fit_is_refused(case: Case) -> None:
    algo, given = case.given
    with case.refused(ConfigError):
        resolved(algo, **given)


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("max_rl", {"kl_coef": 0.1}),
        ("max_rl", {"filter": ["overlong"]}),
        ("grpo", {"whiten_advantages": True}),
        ("grpo", {"correction": ["tis", "mis", "opsm"], "correction__mis__mode": "reject", "minibatches": 2}),
        ("reinforce", {"filter": [], "group_size": 1}),
        ("grpo", {"filter": ["staleness"], "max_staleness": 1}),
        ("grpo", {"kl_place": "reward", "kl_estimator": "k1", "kl_coef": 0.1}),
        ("grpo", {"advantage": "dr_grpo"}),
        ("grpo", {"reward": ["token_match", "f1=0.3"], "rank_reward": ["f1"]}),
    ],
)
def test_what_fits_is_taken(algo: str, given: dict[str, Any]) -> None:
    assert resolved(algo, **given).algorithm == algo


def _highest(run: Resolved) -> float:
    assert isinstance(run.loss.config, PpoClipConfig)
    return run.loss.config.highest


def test_the_upper_clip_follows_the_lower_one() -> None:
    assert _highest(resolved("grpo", loss__clip_low=0.1)) == 0.1
    assert _highest(resolved("dapo")) == 0.28


def test_dr_grpo_by_name_has_no_standard_deviation() -> None:
    by_name, by_setting = resolved("grpo", advantage="dr_grpo").advantage, resolved("dr_grpo").advantage
    assert by_name is not None
    assert by_setting is not None
    assert by_name.config.model_dump() == by_setting.config.model_dump()
    assert by_name.factory == by_setting.factory
