"""Choices of the bundled parts that would do nothing, or something else than they say, are refused."""

from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.compose.resolve import resolve
from rlcore.compose.resolved import Resolved
from rlcore.compose.select import select
from rlcore.config.layers import Layer
from rlcore.plugins.loader import load
from rlcore_grpo.config import PpoClipConfig

PLUGINS = load()


def resolved(algo: str, **given: Any) -> Resolved:
    """The settings of `rlcore train --algo ALGO --model qwen3` and these flags (`__` for a dot)."""
    values = {"algo": algo, "model": "qwen3", "engine": "local"} | {
        name.replace("__", "."): given[name] for name in given
    }
    return resolve(select(PLUGINS.registry, None, Layer(label="", values=values)))


@pytest.mark.parametrize(
    ("algo", "given", "says"),
    [
        ("max_rl", {"kl_coef": 0.1, "kl_place": "reward"}, r"'max_rl', which needs rewards of 0 or more"),
        (
            "max_rl",
            {
                "filter": ["overlong"],
                "filter__overlong__mode": "penalty",
                "filter__overlong__max_tokens": 8,
                "filter__overlong__buffer": 4,
            },
            "--filter overlong, which lowers them",
        ),
        ("reinforce++", {"whiten_advantages": True}, r"--whiten-advantages: .*'reinforce_plus_plus' is norm"),
        ("reinforce++-baseline", {"whiten_advantages": True}, r"'reinforce_plus_plus_baseline' is norm"),
        ("grpo", {"correction": ["tis", "icepop"]}, r"found 'tis' and 'icepop'.*count twice"),
        ("grpo", {"correction": ["mis", "decoupled"]}, r"found 'mis' and 'decoupled'"),
        (
            "reinforce",
            {"filter": ["zero_std"], "group_size": 1},
            r"--group-size: found 1, but filter 'zero_std'",
        ),
        (
            "grpo",
            {"filter": ["duplicates"], "filter__duplicates__min_distinct": 8, "group_size": 4},
            "least 8",
        ),
        (
            "grpo",
            {"rank_reward": ["f1"]},
            r"--rank-reward: found 'f1', expected a reward of the run \(token_match\)",
        ),
        (
            "remax",
            {"rank_reward": ["token_match"], "group_size": 1},
            r"--group-size: found 1, but --rank-reward",
        ),
        (
            "remax",
            {"rank_reward": ["token_match"], "group_size": 2},
            r"--rank-reward: found .*a greedy response",
        ),
        (
            "grpo",
            {
                "generator": "session",
                "generator__command": ["true"],
                "generator__port": 8000,
                "rollout_workers": 2,
            },
            r"--rollout-workers: found 2 with --generator\.port, .*expected at most 1",
        ),
        (
            "grpo",
            {
                "eval": ["own=copy"],
                "eval__own__generator": "session",
                "eval__own__generator__command": ["true"],
                "eval__own__generator__public_url": "https://agents.example",
                "rollout_workers": 2,
            },
            r"--rollout-workers: found 2 with --generator\.public-url",
        ),
        ("grpo", {"filter": ["staleness"]}, r"'staleness', but no sample is stale; add --max-staleness"),
        *(
            (
                "grpo",
                {"correction": [name], "old_log_probs": "rollout"},
                rf"found '{name}', .*expected --old-log-probs trainer",
            )
            for name in ("tis", "mis", "icepop", "decoupled")
        ),
        ("grpo", {"correction": ["opsm"]}, r"'opsm', .*same with --minibatches 1; expected at least 2"),
        ("grpo", {"kl_place": "reward"}, r"--kl-place: found reward, .*add --kl-coef"),
        ("grpo", {"kl_estimator": "k1"}, r"--kl-estimator: found k1, .*add --kl-coef"),
    ],
)
def test_what_does_not_fit_is_refused(algo: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
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
