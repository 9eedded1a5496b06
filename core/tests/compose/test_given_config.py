"""Recipes that train on given responses: which parts a run has, and which settings are refused."""

from pathlib import Path

import pytest
from runs import resolved, run_of

from rlcore import Input, Kind, TrainsOn


def test_there_is_a_loss_and_none_of_what_works_on_rollouts() -> None:
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
def test_what_it_writes_gives_the_same_run(tmp_path: Path, algorithm: str) -> None:
    run, file = run_of(algorithm, {"minibatches": "2"}), tmp_path / "run.toml"
    file.write_text(run.to_toml())
    assert resolved({}, file) == run
    for kind in (Kind.REWARD, Kind.ADVANTAGE, Kind.GENERATOR, Kind.FILTER):
        assert f"\n{kind} = " not in run.to_toml()
