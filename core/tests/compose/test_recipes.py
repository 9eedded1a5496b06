"""The bundled recipes: each resolves, each is what its paper says, and each refuses what does not fit it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases
from runs import installed, run_of

from rlcore import Algorithm, ConfigError, DataError, Input, Kind, TrainsOn, UserError
from rlcore.compose.resolved import Resolved
from rlcore.preparation.prepare import prepare
from rlcore_grpo.config import PpoClipConfig

NAMES = installed().registry.names(Kind.ALGORITHM)
WITH: dict[str, dict[str, Any]] = {"opd": {"teacher.url": "http://127.0.0.1:30000"}}
"""What a recipe leaves to the user."""


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_resolves(name: str) -> None:
    """Its parts are there, load and take their settings, and its run comes back from what it writes."""
    found, record = run_of(name, WITH.get(name)), installed().registry.find(Kind.ALGORITHM, name, "").record
    assert isinstance(record, Algorithm)
    assert found.algorithm == name
    assert found.trains_on is record.trains_on
    assert found.flat()["loss"] == record.parts["loss"]
    optional = [part for part in (found.advantage, found.value_loss) if part is not None]
    for part in (found.loss, *optional, *found.filters, *found.corrections, *found.rewards):
        part.build()
    assert record.paper.startswith("https://")


VETTED = tomllib.loads((Path(__file__).parent / "recipes.toml").read_text())

OF_A_RUN = {"normalizer", *VETTED["bases"]["given"], "group_size"}
OF_PARTS = {"advantage", "loss", "value_loss", "filter", "correction"}


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_is_what_was_vetted(name: str) -> None:
    flat = run_of(name, WITH.get(name)).flat()
    found = {key: x for key, x in flat.items() if key in OF_A_RUN or key.partition(".")[0] in OF_PARTS}
    expected: dict[str, Any] = {}
    for base in VETTED["recipes"][name]["bases"]:
        expected |= VETTED["bases"][base]
    expected |= VETTED["recipes"][name]
    del expected["bases"]
    assert {key: "none" if x is None else x for key, x in found.items()} == expected


NEEDS: dict[str, set[Input]] = {
    "kl_cov": {Input.OLD_LOG_PROBS},
    "ppo": {Input.VALUES},
    "remax": {Input.GREEDY_REWARD},
    "opd": {Input.TEACHER_LOG_PROBS},
    "dpo": {Input.REFERENCE_LOG_PROBS},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_inputs_of_each_recipe(name: str) -> None:
    """What is not in the table costs no forward and no generation."""
    assert run_of(name, WITH.get(name)).needs == NEEDS.get(name, set())


ONE = {"group_size": "1"}
TEACHER = WITH["opd"]


@cases("recipes")
def test_a_misfit(case: Case) -> None:
    recipe, flags = case.given
    with case.refused(ConfigError):
        run_of(recipe, flags)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *(("grpo", {"correction": [name]}) for name in ("tis", "mis", "icepop", "decoupled")),
        ("grpo", {"correction": ["opsm"], "minibatches": "2"}),
        ("grpo", {"correction": ["opsm"], "old_log_probs": "rollout"}),
        ("grpo", {**ONE, "advantage.single": "reward"}),
        *((name, ONE) for name in ("reinforce", "remax", "reinforce++", "ppo")),
        ("grpo", {"loss.dual_clip": "1.01"}),
        ("grpo", {**TEACHER, "advantage": "zero", "distill_coef": "1"}),
        ("max_rl", {"kl_coef": 0.1}),
        ("max_rl", {"filter": ["overlong"]}),
        ("grpo", {"whiten_advantages": True}),
        ("grpo", {"correction": ["tis", "mis", "opsm"], "correction.mis.mode": "reject", "minibatches": 2}),
        ("reinforce", {"filter": [], "group_size": 1}),
        ("grpo", {"filter": ["staleness"], "max_staleness": 1}),
        ("grpo", {"kl_place": "reward", "kl_estimator": "k1", "kl_coef": 0.1}),
        ("grpo", {"advantage": "dr_grpo"}),
        ("grpo", {"sleep": "optimizer"}),
        ("grpo", {"sleep": "optimizer", "max_staleness": "1", "partial_rollouts": True}),
        ("grpo", {"reward": ["token_match", "f1=0.3"], "rank_reward": ["f1"]}),
    ],
    ids=str,
)
def test_what_fits_is_taken(name: str, flags: dict[str, Any]) -> None:
    assert run_of(name, flags).trains_on is TrainsOn.ROLLOUTS


def _highest(run: Resolved) -> float:
    assert isinstance(run.loss.config, PpoClipConfig)
    return run.loss.config.highest


def test_the_upper_clip_follows_the_lower_one() -> None:
    assert _highest(run_of("grpo", {"loss.clip_low": 0.1})) == 0.1
    assert _highest(run_of("dapo")) == 0.28


def test_dr_grpo_by_name_has_no_standard_deviation() -> None:
    by_name, by_setting = run_of("grpo", {"advantage": "dr_grpo"}).advantage, run_of("dr_grpo").advantage
    assert by_name is not None
    assert by_setting is not None
    assert by_name.config.model_dump() == by_setting.config.model_dump()
    assert by_name.factory == by_setting.factory


PROMPTS = '{"prompt": "12=", "label": "12"}\n'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("dpo", None, ("'copy' offers no pairs", "--data FILE with prompt, chosen and rejected")),
        ("dpo", PROMPTS, ("line 1", "'chosen'")),
        ("sft", PROMPTS, ("line 1", "'response'")),
    ],
    ids=["dpo of a task", "dpo of prompts", "sft of prompts"],
)
def test_data_that_does_not_fit(tmp_path: Path, name: str, data: str | None, said: tuple[str, ...]) -> None:
    """Found before anything is started."""
    flags = {"task": "copy"}
    if data is not None:
        file = tmp_path / "rows.jsonl"
        file.write_text(data)
        flags = {"data": str(file)}
    with pytest.raises(UserError) as caught:
        prepare(run_of(name, flags), tmp_path / "run", None)
    assert isinstance(caught.value, ConfigError | DataError)
    assert all(part in str(caught.value) for part in said), str(caught.value)
