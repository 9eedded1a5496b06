"""The table of slime's flags: complete, and each setting that it names is one."""

from pathlib import Path

from rlcore.api.config import fields_of
from rlcore.api.run_config import RunConfig
from rlcore.compose.selection import CHOICES
from rlcore_import.slime.translate import COMPUTED, table
from rlcore_import.table import Rule

FLAGS = (Path(__file__).parent / "slime_flags.txt").read_text().split()
"""What slime and its fork miles take of their own, and what their users write of Megatron's and SGLang's."""
RULES = list(table().rules.values())
TABLES = ("megatron", "sglang", "engine", "source", "loss", "value_loss", "advantage", "reward")


def test_every_flag_of_slime_is_known() -> None:
    known = table()
    assert not [flag for flag in FLAGS if known.find(flag) is None]


def test_the_functions_and_the_table_name_each_other() -> None:
    assert {rule.by for rule in RULES if rule.by} == set(COMPUTED)


def _settings(rule: Rule) -> set[str]:
    mapped = [value for value in (rule.values or {}).values() if isinstance(value, dict)]
    return {name for name in (rule.to, *rule.set, *(key for value in mapped for key in value)) if name}


def test_settings_of_the_run_exist() -> None:
    known = {*fields_of(RunConfig), *CHOICES}
    named = {name for rule in RULES for name in _settings(rule)}
    assert not {name for name in named if "." not in name} - known
    assert {name.partition(".")[0] for name in named if "." in name} <= set(TABLES)
