"""Recipe and settings of the plugin."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlcore.api.part import Part
from rlcore.api.records import Algorithm
from rlcore.api.run_config import RunConfig
from rlcore_grpo import plugin as grpo
from rlcore_gspo import plugin
from rlcore_gspo.config import GmpoConfig, GspoConfig, VespoConfig


def test_each_loss_is_made_from_its_defaults() -> None:
    for component in plugin.rlcore_losses():
        Part(name=component.name, factory=component.factory, config=component.config()).build()


LOSSES = {"gspo": "gspo", "luspo": "gspo", "gmpo": "gmpo", "vespo": "vespo"}
NORMALIZERS = {"gspo": "per_rollout", "luspo": "constant", "gmpo": "per_rollout", "vespo": "per_token"}


@pytest.mark.parametrize("recipe", list(plugin.rlcore_algorithms()), ids=lambda recipe: recipe.name)
def test_recipe_names_parts_and_settings_that_exist(recipe: Algorithm) -> None:
    assert recipe.parts["loss"] == LOSSES[recipe.name]
    offered = {
        "advantage": grpo.rlcore_advantages(),
        "loss": plugin.rlcore_losses(),
        "filter": grpo.rlcore_filters(),
    }
    names = {kind: {component.name for component in found} for kind, found in offered.items()}
    for kind, used in recipe.parts.items():
        assert {used} <= names[kind] if isinstance(used, str) else set(used) <= names[kind]
    assert RunConfig.of(**recipe.settings).loss.normalizer == NORMALIZERS[recipe.name]


@pytest.mark.parametrize("bad", [{"clip_low": 0}, {"clip_low": 1.5}, {"clip_high": -1}, {"clip": 0.2}])
def test_settings_out_of_bounds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        GspoConfig.model_validate(bad)


def test_settings_of_the_siblings_are_bounded_too() -> None:
    with pytest.raises(ValidationError):
        GmpoConfig(clip_low=0)
    with pytest.raises(ValidationError):
        VespoConfig(k_pos=-1)


def test_registration_imports_no_torch() -> None:
    code = "import sys, rlcore_gspo.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
