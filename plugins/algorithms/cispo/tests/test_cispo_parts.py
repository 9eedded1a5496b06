"""Recipe and settings of the plugin."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlcore.api.part import Part
from rlcore.api.run_config import RunConfig
from rlcore_cispo import plugin
from rlcore_cispo.config import CispoConfig
from rlcore_grpo import plugin as grpo


def test_the_loss_is_made_from_its_defaults() -> None:
    (component,) = plugin.rlcore_losses()
    Part(name=component.name, factory=component.factory, config=component.config()).build()


def test_recipe_names_parts_and_settings_that_exist() -> None:
    (recipe,) = plugin.rlcore_algorithms()
    assert recipe.name == "cispo"
    assert recipe.parts["loss"] == "cispo"
    offered = {
        "advantage": grpo.rlcore_advantages(),
        "loss": plugin.rlcore_losses(),
        "filter": grpo.rlcore_filters(),
    }
    names = {kind: {component.name for component in found} for kind, found in offered.items()}
    for kind, used in recipe.parts.items():
        assert {used} <= names[kind] if isinstance(used, str) else set(used) <= names[kind]
    assert RunConfig.of(**recipe.settings).loss.normalizer == "per_token"


@pytest.mark.parametrize("bad", [{"clip_low": 0}, {"clip_low": 1.5}, {"clip_high": 0}, {"dual_clip": 3}])
def test_settings_out_of_bounds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        CispoConfig.model_validate(bad)


def test_registration_imports_no_torch() -> None:
    code = "import sys, rlcore_cispo.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
