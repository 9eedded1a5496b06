"""Each preset of a family is one that its bridge reads, and of the family that it stands for."""

import importlib
from pathlib import Path

import pytest

from rlcore import Kind, ModelFamily, check_weights
from rlcore.compose.models import find
from rlcore.plugins.loader import load

REGISTRY = load().registry
PRESETS = {
    record.name: record
    for record in (entry.record for entry in REGISTRY.entries(Kind.MODEL))
    if isinstance(record, ModelFamily) and record.preset
}


def test_every_family_has_one() -> None:
    assert {"qwen3", "llama", "glm", "deepseek"} <= PRESETS.keys()


def test_the_driver_imports_no_bridge_of_a_preset() -> None:
    assert all(record.lazy_bridge for record in PRESETS.values())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_model_of_its_family(name: str, tmp_path: Path) -> None:
    record = PRESETS[name]
    module, _, function = str(record.preset).partition(":")
    write = getattr(importlib.import_module(module), function)
    first, again = write(tmp_path / "a", 3), write(tmp_path / "b", 3)
    for file in first.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name
    check_weights(first)
    assert find(str(first), REGISTRY, "--model").family.factory == record.factory
    assert find(name, REGISTRY, "--model").path is None
