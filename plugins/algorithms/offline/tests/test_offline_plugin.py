"""The plugin's recipes, and what its registration imports."""

import subprocess
import sys

from rlcore import Kind, TrainsOn
from rlcore.plugins.loader import Switches, load
from rlcore_offline import plugin
from rlcore_offline.config import DpoConfig, SftConfig


def test_the_recipes_name_what_is_there() -> None:
    recipes = list(plugin.rlcore_algorithms())
    assert [(recipe.name, recipe.trains_on) for recipe in recipes] == [
        ("sft", TrainsOn.RESPONSES),
        ("dpo", TrainsOn.PAIRS),
    ]
    registry = load(Switches()).registry
    losses = [registry.find(Kind.LOSS, str(recipe.parts["loss"]), "") for recipe in recipes]
    assert [loss.config for loss in losses] == [SftConfig, DpoConfig]


def test_the_plugin_module_imports_little() -> None:
    code = (
        "import sys, rlcore_offline.plugin; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'megatron', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
