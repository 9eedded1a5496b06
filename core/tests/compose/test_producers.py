"""How rollouts are made: by what suits the run, unless a producer is chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases
from runs import run_of

from rlcore.compose.resolved import Resolved

Make = Callable[..., Resolved]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "synchronous"),
        ({"max_staleness": "1"}, "asynchronous"),
        ({"max_staleness": "1", "partial_rollouts": True}, "asynchronous"),
    ],
)
def test_the_default_is_what_suits_the_run(make: Make, flags: dict[str, Any], name: str) -> None:
    resolved = make(flags)
    assert (resolved.producer.name, resolved.flat()["producer"]) == (name, None)
    assert make({**flags, "producer": name}).producer == resolved.producer


def test_given_responses_have_a_producer_of_their_own() -> None:
    assert run_of("sft").producer.name == "offline"
    assert run_of("dpo").producer.name == "offline"


def test_what_a_run_leaves_behind_can_be_made_asynchronous(make: Make, write: Callable[[str], Path]) -> None:
    file = write(make().to_toml())
    assert make({}, file) == make()
    assert make({"max_staleness": "2"}, file).producer.name == "asynchronous"


def test_a_plugin_may_make_the_rollouts(make: Make, write: Callable[[str], Path]) -> None:
    resolved = make({"producer": "tree", "producer.width": "3"})
    assert resolved.producer.factory == "toy:Tree"
    assert {key: value for key, value in resolved.flat().items() if key.startswith("producer")} == {
        "producer": "tree",
        "producer.width": 3,
    }
    assert make({}, write(resolved.to_toml())) == resolved
    assert make({"producer": "tree", "max_staleness": "1"}).producer.name == "tree"
    assert make({"producer": "none"}).producer.name == "synchronous"


@cases("producers: one that does not suit is refused")
def test_one_that_does_not_suit_is_refused(make: Make, case: Case) -> None:
    flags = case.given
    with case.refused(Exception):
        make(flags)
