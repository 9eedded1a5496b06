"""Recipes that train on given responses: which parts a run has, and which settings are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore import ConfigError, Input, Kind, TrainsOn
from rlcore.compose.resolved import Resolved
from rlcore.config import toml
from rlcore.config.layers import Layer
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore_cli.resolve import resolve
from rlcore_cli.select import select

Make = Callable[..., Resolved]


@pytest.fixture(scope="module")
def bundled() -> Plugins:
    return load(Switches())


@pytest.fixture
def run_of(bundled: Plugins) -> Make:
    """`run_of(algorithm, flags, file)`: the resolved run of the bundled plugins."""

    def run_of(algorithm: str, flags: dict[str, Any] | None = None, file: Path | None = None) -> Resolved:
        layer = Layer(label=file.name, values=toml.read_settings(file)) if file else None
        values = {"algo": algorithm, "model": "qwen3", "engine": "local", **(flags or {})}
        chosen = select(bundled.registry, layer, Layer(label="", values=values))
        return resolve(chosen)

    return run_of


def test_there_is_a_loss_and_none_of_what_works_on_rollouts(run_of: Make) -> None:
    found = run_of("sft", {"task": "reverse"})
    assert found.trains_on is TrainsOn.RESPONSES
    assert (found.loss.name, found.generator.name) == ("sft", "single_turn")
    assert (found.advantage, found.rewards, found.value_loss) == (None, (), None)
    assert (found.filters, found.corrections, found.needs) == ((), (), frozenset())
    assert (found.run.data.group_size, found.run.loss.normalizer, found.run.loss.entropy_coef) == (
        1,
        "per_token",
        0,
    )
    pairs = run_of("dpo")
    assert (pairs.trains_on, pairs.run.data.group_size) == (TrainsOn.PAIRS, 2)
    assert pairs.needs == {Input.REFERENCE_LOG_PROBS}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_what_it_writes_gives_the_same_run(run_of: Make, tmp_path: Path, algorithm: str) -> None:
    run, file = run_of(algorithm, {"minibatches": "2"}), tmp_path / "run.toml"
    file.write_text(run.to_toml())
    assert run_of(algorithm, {}, file) == run
    for kind in (Kind.REWARD, Kind.ADVANTAGE, Kind.GENERATOR, Kind.FILTER):
        assert f"\n{kind} = " not in run.to_toml()


GIVEN = "but --algo sft trains on given responses"


@cases("recipes: given")
def test_a_misfit(run_of: Make, case: Case) -> None:
    recipe, flags = case.given
    with case.refused(ConfigError):
        run_of(recipe, flags)
