"""How rollouts are made: by what suits the run, unless a producer is chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore.api.errors import ConfigError
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


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"producer": "asynchronous"},
            r"'asynchronous', .* of a synchronous run on rollouts; expected synchronous or tree",
        ),
        (
            {"producer": "synchronous", "max_staleness": "1"},
            "of an asynchronous run on rollouts; expected asynchronous",
        ),
        ({"producer": "offline"}, "'offline', which does not make the rollouts of a synchronous run"),
        (
            {"producer": "forest"},
            r"--producer: found 'forest', expected one of tree, asynchronous, offline, synchronous",
        ),
        ({"producer.width": "3"}, r"belongs to producer 'tree', but none is chosen"),
    ],
)
def test_one_that_does_not_suit_is_refused(make: Make, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words) as refused:
        make(flags)
    assert isinstance(refused.value, ConfigError) or "forest" in words
