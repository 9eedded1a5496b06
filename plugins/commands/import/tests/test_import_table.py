"""The tables of the frameworks: complete, without a vanished name, and each setting that they name is one."""

import ast
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlcore.api.config import fields_of
from rlcore.api.run_config import RunConfig
from rlcore.compose.selection import CHOICES
from rlcore_import.frameworks import FRAMEWORKS
from rlcore_import.table import Rule
from rlcore_import.verl.overrides import of_yaml

FLAGS = (Path(__file__).parent / "slime_flags.txt").read_text().split()
"""What slime and its fork miles take of their own, and what their users write of Megatron's and SGLang's."""
TABLES = (
    *("megatron", "sglang", "trainer", "engine", "source", "loss", "value_loss", "advantage", "reward"),
    *("callback", "filter", "correction", "tracker"),
)
ADDED = "Added"
"""The topic of what users write although no configuration has it."""


def package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent


def rules(framework: str) -> list[Rule]:
    return list(FRAMEWORKS[framework]().table().rules.values())


def unknown_and_vanished(framework: str, names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Of `names`, those that the table lacks; and rows of the table that stand for none of them."""
    table, names = FRAMEWORKS[framework]().table(), set(names)
    found = {name: rule.flag for name in names if (rule := table.find(name)) is not None}
    vanished = {rule.flag for rule in rules(framework) if rule.topic != ADDED} - set(found.values())
    return names - found.keys(), vanished


def test_every_flag_of_slime_is_known() -> None:
    assert unknown_and_vanished("slime", FLAGS)[0] == set()


def test_the_table_of_verl_is_that_of_the_installed_package() -> None:
    folder = package("verl") / "trainer" / "config"
    files = [of_yaml(folder / f"_generated_{kind}_trainer.yaml") for kind in ("ppo", "ppo_megatron")]
    names = {name for file in files for name in file.flags}
    assert len(names) > 900
    assert unknown_and_vanished("verl", names) == (set(), set())


TRL_CLASSES = {
    "trl": {
        "trainer/base_config.py": "_BaseConfig",
        "trainer/grpo_config.py": "GRPOConfig",
        "trainer/sft_config.py": "SFTConfig",
        "trainer/dpo_config.py": "DPOConfig",
        "trainer/model_config.py": "ModelConfig",
        "scripts/utils.py": "ScriptArguments",
        "scripts/grpo.py": "GRPOScriptArguments",
    },
    "transformers": {"training_args.py": "TrainingArguments"},
}


def test_the_table_of_trl_is_that_of_the_installed_package() -> None:
    names = {
        field.target.id
        for name, classes in TRL_CLASSES.items()
        for file, wanted in classes.items()
        for node in ast.parse((package(name) / file).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == wanted
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert len(names) > 230
    assert unknown_and_vanished("trl", names) == (set(), set())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_functions_and_the_table_name_each_other(framework: str) -> None:
    translate = sys.modules[FRAMEWORKS[framework]().translate.__module__]
    assert {rule.by for rule in rules(framework) if rule.by} == set(translate.COMPUTED)


def _settings(rule: Rule) -> set[str]:
    mapped = [value for value in (rule.values or {}).values() if isinstance(value, dict)]
    return {name for name in (rule.to, *rule.set, *(key for value in mapped for key in value)) if name}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_of_the_run_exist(framework: str) -> None:
    of_run = fields_of(RunConfig)
    known = {*of_run, *CHOICES}
    named = {name for rule in rules(framework) for name in _settings(rule)}
    assert not {name for name in named if "." not in name} - known
    assert {name.partition(".")[0] for name in named - of_run.keys() if "." in name} <= set(TABLES)
