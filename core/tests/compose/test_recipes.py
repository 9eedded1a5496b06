"""The bundled recipes: each resolves, each is what its paper says, and each refuses what does not fit it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases
from runs import installed, run_of

from rlcore import Algorithm, ConfigError, DataError, Input, Kind, TrainsOn, UserError
from rlcore.preparation.prepare import prepare

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


def _same_as_rollout(name: str) -> str:
    return (
        f"--correction: found {name!r}, which compares the trainer's old log-probs with the engine's, but "
        "--old-log-probs rollout makes them the same; expected --old-log-probs trainer."
    )


def _group_of_one(name: str) -> str:
    compares = f"advantage {name!r} compares the samples of a prompt"
    return f"--group-size: found 1, but {compares}; expected at least 2."


ONE = {"group_size": "1"}
NO_CRITIC = "--value-loss: found none, but advantage 'gae' reads a critic's values; add --value-loss clipped."
NO_TEACHER = (
    "--teacher.model: found none, but loss 'distill' compares with a teacher; add --teacher.model PATH or "
    "--teacher.url URL."
)
IDLE_CRITIC = (
    "--value-loss: found 'clipped', but nothing reads a critic's values; add --advantage gae or "
    "--value-loss none."
)
TEACHER = WITH["opd"]
UNREAD = "but loss 'distill' reads no advantages"


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
    ],
    ids=str,
)
def test_what_fits_is_taken(name: str, flags: dict[str, Any]) -> None:
    assert run_of(name, flags).trains_on is TrainsOn.ROLLOUTS


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
