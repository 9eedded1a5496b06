"""Engines on other hosts: whether their weights can follow them, and how their ranks are divided."""

from typing import Any, cast

import pytest
from runs import run_of

from rlcore.errors import ConfigError
from rlcore.runtime.cluster import Cluster
from rlcore.runtime.engine_checks import nodes_of
from rlcore.runtime.placement import Placement, check_frozen, check_ways
from rlcore.runtime.trainer import Slot

HERE, THERE = "10.0.0.1", "10.0.0.2"
BROADCAST = {"engine.publish": "broadcast"}


class Two:
    """A cluster of two hosts."""

    address, here = f"{HERE}:6379", HERE


def slot(host: str) -> Slot:
    return Slot(bundle=(None, 0), gpus=0, host=host, is_here=host == HERE)


@pytest.mark.parametrize(
    ("flags", "worker", "engines", "said"),
    [
        ({}, HERE, [[HERE], [HERE]], None),
        ({}, THERE, [[HERE]], f"train worker 0 would run on {THERE}, and must be beside this command"),
        ({}, HERE, [[HERE], [THERE]], f"engine 1 would run on {THERE}, and --engine.publish shared_memory"),
        ({}, HERE, [[THERE]], "reaches none but .* take --engine.publish broadcast, make room"),
        (BROADCAST, HERE, [[HERE], [THERE]], None),
        (BROADCAST, HERE, [[HERE, HERE]], None),
        (BROADCAST, HERE, [[HERE, THERE]], f"would run on {THERE}, and --engine.publish broadcast"),
        (
            {**BROADCAST, "check_weights_every": 2},
            HERE,
            [[THERE]],
            "--check-weights-every has an engine read",
        ),
    ],
)
def test_weights_can_follow(
    flags: dict[str, Any], worker: str, engines: list[list[str]], said: str | None
) -> None:
    placement = Placement(
        workers=[slot(worker)],
        critics=[],
        engines=[tuple(map(slot, nodes)) for nodes in engines],
        frozen=[],
    )
    resolved = run_of("grpo", flags)
    if said is None:
        check_ways(cast("Cluster", Two()), placement, resolved)
        return
    with pytest.raises(ConfigError, match=said):
        check_ways(cast("Cluster", Two()), placement, resolved)


def test_frozen_models_are_beside_the_command() -> None:
    cluster = cast("Cluster", Two())
    check_frozen(cluster, [slot(HERE), slot(HERE)])
    with pytest.raises(ConfigError, match=f"a frozen model would run on {THERE}, and must be beside this"):
        check_frozen(cluster, [slot(HERE), slot(THERE)])


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({}, 1),
        ({"tp-size": "4", "nnodes": "2"}, 2),
        ({"tensor_parallel_size": 2, "pp_size": 3, "nnodes": 6}, 6),
        ({"nnodes": 2}, None),
        ({"tp_size": 4, "nnodes": 3}, None),
        ({"tp_size": 4, "nnodes": 0}, None),
    ],
)
def test_nodes_divide_the_ranks(fields: dict[str, Any], nodes: int | None) -> None:
    if nodes is not None:
        assert nodes_of(fields) == nodes
        return
    with pytest.raises(ConfigError, match=r"--sglang\.nnodes: found \d, which does not divide the \d ranks"):
        nodes_of(fields)
