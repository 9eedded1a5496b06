"""Engines on other hosts: whether their weights can follow them, and how their ranks are divided."""

from dataclasses import replace
from typing import Any, cast

import pytest
from runs import run_of

from rlcore.api.errors import ConfigError
from rlcore.runtime.cluster import Cluster
from rlcore.runtime.connect import connect
from rlcore.runtime.placement import Placement, bundles_of, check_frozen, check_ways, cpus_of, place
from rlcore.runtime.prepare import prepare
from rlcore.runtime.prepared import FrozenModel, Prepared
from rlcore.runtime.trainer import BundleSlot

HERE, THERE = "10.0.0.1", "10.0.0.2"
BROADCAST = {"engine.publish": "broadcast"}


class Two:
    """A cluster of two hosts."""

    address, here = f"{HERE}:6379", HERE


def slot(host: str) -> BundleSlot:
    return BundleSlot(bundle=(None, 0), gpus=0, host=host, is_here=host == HERE)


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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Of plain `grpo`, in a folder of its own."""
    return prepare(run_of("grpo"), tmp_path_factory.mktemp("run"), None)


def on_gpus(prepared: Prepared, flags: dict[str, Any], algorithm: str = "grpo", frozen: int = 0) -> Prepared:
    """The run of `flags` on a machine with GPUs, where SGLang generates."""
    models = tuple(FrozenModel(name=f"f{number}", path="/model", fields={}) for number in range(frozen))
    resolved = run_of(algorithm, {"engine": "sglang", **flags})
    return replace(prepared, resolved=resolved, evals=(), gpu=True, frozen=models)


SPLIT = {"placement": "split"}


@pytest.mark.parametrize(
    ("flags", "algorithm", "frozen", "cpus", "gpus"),
    [
        ({}, "grpo", 0, 2, 1),
        ({"ranks": 8}, "grpo", 0, 16, 8),
        ({"ranks": 2}, "sft", 0, 2, 2),
        ({"ranks": 2, "engine_url": ("http://127.0.0.1:1",)}, "grpo", 0, 2, 2),
        ({"ranks": 2, "engines": 2, "critic_workers": "separate"}, "ppo", 0, 8, 4),
        ({}, "grpo", 2, 6, 3),
        ({**SPLIT, "ranks": 2, "engines": 2, "sglang.tp_size": "2"}, "grpo", 1, 5, 7),
    ],
)
def test_a_machine_with_as_many_gpus_has_room(
    prepared: Prepared, flags: dict[str, Any], algorithm: str, frozen: int, cpus: int, gpus: int
) -> None:
    """Of the layouts that one command may ask for, Ray's own cluster takes each whole."""
    bundles = bundles_of(on_gpus(prepared, flags, algorithm, frozen))
    assert sum(bundle["CPU"] for bundle in bundles) == cpus < cpus_of(bundles)
    assert sum(bundle["GPU"] for bundle in bundles) == gpus


@pytest.mark.parametrize("flags", [{"engines": 2}, {"ranks": 4, "sglang.tp_size": "2"}])
def test_engines_that_workers_have_no_room_for(prepared: Prepared, flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="puts each engine on the device of one train worker"):
        bundles_of(on_gpus(prepared, flags))


def test_ray_reserves_what_a_run_on_eight_gpus_takes(prepared: Prepared) -> None:
    run = on_gpus(prepared, {"ranks": 8, "engines": 1})
    with connect(None, gpus=8, parts=()) as cluster_with:
        cluster = cluster_with(cpus_of(bundles_of(run)))
        placement = place(cluster, run)
    assert [slot.gpus for slot in placement.workers] == [0.5] * 8
    assert placement.engines == [(placement.workers[0],)]
