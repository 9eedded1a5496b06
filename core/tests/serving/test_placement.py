"""Where engines are: whether their weights can follow them, and which GPUs each of their processes has."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import seeing_engine
from command import wait_for
from launches import launch
from refusals import Case, cases
from runs import run_of

from rlcore import Bundle, Cluster, ConfigError, EngineClient, EngineConfig, Part
from rlcore.engines.lifecycle import Spares
from rlcore.preparation.prepared import FrozenModel, Prepared
from rlcore.runtime.connect import opened
from rlcore.serving.placement import (
    Nodes,
    Placement,
    bundles_of,
    check_frozen,
    check_publication,
    cpus_of,
    place,
    senders,
    sources_of,
)
from rlcore.serving.servers import Servers
from rlcore.workers.trainer_group import BundleSlot

HERE, THERE = "10.0.0.1", "10.0.0.2"
BROADCAST, DISK = {"engine.publish": "broadcast"}, {"engine.publish": "disk"}


class Two:
    """A cluster of two hosts."""

    here = HERE


def slot(host: str) -> BundleSlot:
    return BundleSlot(bundle=(None, 0), gpus=0, host=host, is_here=host == HERE)


@pytest.mark.parametrize(
    ("flags", "workers", "engines", "said"),
    [
        ({}, [HERE], [[HERE], [HERE]], None),
        ({}, [THERE, HERE], [[HERE], [THERE]], None),
        ({}, [HERE], [[HERE], [THERE]], f"engine 1 would run on {THERE}, and --engine.publish shared_memory"),
        (
            {},
            [THERE],
            [[HERE]],
            f"engine 0 would run on {HERE}, and .* reaches none but those on {THERE}: take",
        ),
        ({}, [HERE], [[THERE]], "reaches none but .* take --engine.publish broadcast, make room"),
        (DISK, [HERE, THERE], [[HERE]], None),
        (DISK, [THERE, HERE], [[HERE]], f"worker 0 would run on {THERE}, and --engine.publish disk needs it"),
        (DISK, [HERE, THERE], [[THERE]], f"--engine.publish disk reaches none but those on {HERE}"),
        (BROADCAST, [HERE], [[HERE], [THERE]], None),
        (BROADCAST, [THERE], [[HERE], [THERE]], None),
        (BROADCAST, [HERE], [[HERE, HERE]], None),
        (BROADCAST, [HERE], [[HERE, THERE]], f"would run on {THERE}, and --engine.publish broadcast"),
        ({**BROADCAST, "check_weights_every": 2}, [HERE], [[THERE]], "from a file that train worker 0 wrote"),
        ({"check_weights_every": 2}, [THERE, HERE], [[HERE]], "from a file that train worker 0 wrote"),
    ],
)
def test_weights_can_follow(
    flags: dict[str, Any], workers: list[str], engines: list[list[str]], said: str | None
) -> None:
    placement = Placement(
        workers=list(map(slot, workers)),
        engines=[tuple(map(slot, nodes)) for nodes in engines],
        frozen=[],
    )
    resolved = run_of("grpo", flags)
    if said is None:
        check_publication(cast("Cluster", Two()), placement, resolved)
        return
    with pytest.raises(ConfigError, match=said):
        check_publication(cast("Cluster", Two()), placement, resolved)


@pytest.mark.parametrize(
    ("flags", "workers", "engines", "sending"),
    [
        ({}, [HERE, HERE, THERE], [[HERE], [HERE], [THERE]], {0, 2}),
        ({}, [HERE, THERE, THERE], [[THERE]], {1}),
        ({}, [HERE], [], {0}),
        (BROADCAST, [HERE, THERE], [[THERE]], {0}),
    ],
)
def test_which_ranks_send(
    flags: dict[str, Any], workers: list[str], engines: list[list[str]], sending: set[int]
) -> None:
    """A file in memory is for engines on the host; what is broadcast reaches them all."""
    placement = Placement(
        workers=list(map(slot, workers)),
        engines=[tuple(map(slot, nodes)) for nodes in engines],
        frozen=[],
    )
    publisher = run_of("grpo", flags).engine.build().publisher(weights_dir="", model_path="", dtype="fp32")
    assert senders(placement, publisher) == sending


def test_frozen_models_are_beside_the_command() -> None:
    cluster = cast("Cluster", Two())
    check_frozen(cluster, [slot(HERE), slot(HERE)])
    with pytest.raises(ConfigError, match=f"a frozen model would run on {THERE}, and must be beside this"):
        check_frozen(cluster, [slot(HERE), slot(THERE)])


def on_gpus(prepared: Prepared, flags: dict[str, Any], algorithm: str = "grpo", frozen: int = 0) -> Prepared:
    """The run of `flags` on a machine with GPUs, where SGLang generates."""
    models = tuple(FrozenModel(name=f"f{number}", path="/model", fields={}) for number in range(frozen))
    resolved = run_of(algorithm, {"engine": "sglang", **flags})
    return replace(
        prepared,
        resolved=resolved,
        evals=(),
        gpu=True,
        frozen=models,
        engine_fields=resolved.engine_fields,
    )


SPLIT = {"placement": "split"}


@pytest.mark.parametrize(
    ("flags", "algorithm", "frozen", "cpus", "gpus"),
    [
        ({}, "grpo", 0, 2, 1),
        ({"ranks": 8}, "grpo", 0, 16, 8),
        ({"ranks": 2}, "sft", 0, 2, 2),
        ({"ranks": 2, "engine_url": ("http://127.0.0.1:1",)}, "grpo", 0, 2, 2),
        ({"ranks": 2, "engines": 2, "critic.ranks": 2}, "ppo", 0, 8, 4),
        ({"kl_coef": 0.1, "reference.ranks": 2, "critic.ranks": 1}, "ppo", 0, 8, 4),
        ({}, "grpo", 2, 6, 3),
        ({**SPLIT, "ranks": 2, "engines": 2, "sglang.tp_size": "2"}, "grpo", 1, 5, 7),
        ({"ranks": 2, "rollout_workers": 3}, "grpo", 1, 9, 3),
        ({"ranks": 2, "rollout_workers": 3}, "sft", 0, 2, 2),
        ({"only": "rollout", "engines": 2}, "grpo", 0, 2, 2),
        ({"only": "rollout", "engine_url": ("http://127.0.0.1:1",)}, "grpo", 0, 0, 0),
        ({"only": "rollout", "engine_url": ("http://127.0.0.1:1",)}, "grpo", 1, 1, 1),
    ],
)
def test_a_machine_with_as_many_gpus_has_room(
    prepared: Prepared, flags: dict[str, Any], algorithm: str, frozen: int, cpus: int, gpus: int
) -> None:
    """Of the layouts that one command may ask for, Ray's own cluster takes each whole."""
    bundles = bundles_of(on_gpus(prepared, flags, algorithm, frozen))
    assert sum(bundle["CPU"] for bundle in bundles) == cpus < cpus_of(bundles)
    assert sum(bundle.get("GPU", 0) for bundle in bundles) == gpus


@cases("placement: engines that workers have no room for")
def test_engines_that_workers_have_no_room_for(prepared: Prepared, case: Case) -> None:
    flags = case.given
    with case.refused(ConfigError):
        bundles_of(on_gpus(prepared, flags))


def test_too_few_gpus_for_an_engine_that_may_do_without(prepared: Prepared) -> None:
    local = {"engine": "local", "engine.device": "cuda"}
    with pytest.raises(ConfigError, match=r"fewer engines, or --placement split, or --engine\.device cpu\."):
        bundles_of(on_gpus(prepared, {**local, "engines": 2}))

    class TooSmall(Hosts):
        def place(self, bundles: Sequence[Bundle], what: str) -> None:
            raise ConfigError(f"{what} do not fit: lower --ranks.")

    cluster = TooSmall([])
    for cluster.gpus, said in ((1, r"lower --ranks, or --engine\.device cpu\.$"), (2, r"lower --ranks\.$")):
        with pytest.raises(ConfigError, match=said):
            place(cast("Cluster", cluster), on_gpus(prepared, local, frozen=1))


class Hosts:
    """A cluster that takes every bundle: `on` says on which host, and which of its GPUs that is."""

    here, gpus = HERE, 64

    def __init__(self, on: Sequence[tuple[str, int]]) -> None:
        self.on = on

    def place(self, bundles: Sequence[Bundle], what: str) -> None:
        assert len(bundles) == len(self.on), what

    def hosts(self, group: None) -> list[str]:
        return [host for host, _ in self.on]

    def devices(self, group: None) -> list[tuple[str, ...]]:
        return [(str(device),) for _, device in self.on]


def placed(prepared: Prepared, on: Sequence[tuple[str, int]], flags: dict[str, Any]) -> Placement:
    run = on_gpus(prepared, {"ranks": len(on), **flags, "engine.publish": "broadcast"})
    return place(cast("Cluster", Hosts(on)), run)


def test_engines_have_the_gpus_of_neighbors(prepared: Prepared) -> None:
    """Ray gives bundles in any order: the twelfth GPU comes after the second one of its host."""
    mixed = [(HERE, 11), (THERE, 1), (HERE, 2), (THERE, 0), (HERE, 0), (HERE, 1)]
    found = placed(prepared, mixed, {"engines": 3, "sglang.tp_size": "2"})
    assert [(slot.host, slot.devices) for (slot,) in found.engines] == [
        (HERE, ("0", "1")),
        (HERE, ("2", "11")),
        (THERE, ("0", "1")),
    ]
    assert all(slot.gpus == 0 for (slot,) in found.engines)
    assert [(slot.host, slot.devices, slot.gpus) for slot in found.workers[:4]] == [
        (HERE, (number,), 1) for number in ("0", "1", "2", "11")
    ]


def test_rollout_workers_may_be_anywhere(prepared: Prepared) -> None:
    on = [(HERE, 0), (HERE, 1), (HERE, 2), (THERE, 0), (HERE, 0)]
    flags = {"ranks": 2, "rollout_workers": 2, "engine.publish": "broadcast"}
    found = place(cast("Cluster", Hosts(on)), on_gpus(prepared, flags, frozen=1))
    assert [slot.host for slot in found.rollouts] == [HERE, THERE]
    assert [slot.gpus for slot in (*found.rollouts, *found.workers, *found.frozen)] == [0, 0, 1, 1, 1]


def test_without_a_process_to_place_the_cluster_is_not_asked(prepared: Prepared) -> None:
    """Ray refuses a placement group without bundles."""

    class Refuses(Hosts):
        def place(self, bundles: Sequence[Bundle], what: str) -> None:
            raise AssertionError

    run = on_gpus(prepared, {"only": "rollout", "engine_url": ("http://127.0.0.1:1",)})
    assert place(cast("Cluster", Refuses([])), run) == Placement(engines=[], frozen=[])


def test_roles_with_workers_of_their_own_have_gpus_without_engines(prepared: Prepared) -> None:
    flags = {"kl_coef": 0.1, "ranks": 2, "engines": 2, "reference.ranks": 2, "critic.ranks": 1}
    on = [(HERE, device) for device in range(5)]
    run = on_gpus(prepared, {**flags, "engine.publish": "broadcast"}, "ppo")
    found = place(cast("Cluster", Hosts(on)), run)
    devices = {role: [slot.devices for slot in slots] for role, slots in found.roles.items()}
    assert devices == {"critic": [("2",)], "reference": [("3",), ("4",)]}
    assert [slot.devices for (slot,) in found.engines] == [slot.devices for slot in found.workers]


def test_an_engine_of_64_gpus_on_nodes_of_8(prepared: Prepared) -> None:
    on = [(HERE if host == 0 else f"10.0.1.{host}", device) for host in range(8) for device in range(8)]
    flags = {"engines": 1, "sglang.tp_size": "64", "sglang.nnodes": "8", "engine.publish": "tensor"}
    run = replace(on_gpus(prepared, {"ranks": 64, **flags}), hf_config={"num_attention_heads": 64})
    found = place(cast("Cluster", Hosts(on)), run)
    [nodes] = found.engines
    assert [slot.devices for slot in nodes] == [tuple(map(str, range(8)))] * 8
    assert len({slot.host for slot in nodes}) == 8
    assert nodes[0].is_here


TENSOR = {"engine.publish": "tensor"}


def test_each_engine_rank_takes_weights_from_the_worker_on_its_gpu(prepared: Prepared) -> None:
    """In the order of SGLang's ranks, which is that of the devices that a server sees."""
    mixed = [(HERE, 3), (THERE, 1), (HERE, 2), (THERE, 0), (HERE, 0), (HERE, 1)]
    run = on_gpus(prepared, {"ranks": 6, "engines": 2, "sglang.tp_size": "2", **TENSOR})
    found = place(cast("Cluster", Hosts(mixed)), run)
    assert sources_of(found, run) == [(0, 1), (2, 3)]
    publisher = run.resolved.engine.build().publisher(weights_dir="", model_path="", dtype="fp32")
    assert senders(found, publisher, sources_of(found, run)) == {0, 1, 2, 3}
    spanning = on_gpus(
        prepared, {"ranks": 4, "engines": 1, "sglang.tp_size": "4", "sglang.nnodes": "2", **TENSOR}
    )
    over_two = place(cast("Cluster", Hosts([(THERE, 1), (THERE, 0), (HERE, 1), (HERE, 0)])), spanning)
    assert sources_of(over_two, spanning) == [(0, 1, 2, 3)]


@pytest.mark.parametrize(
    "flags",
    [
        {"ranks": 2, "engine.publish": "broadcast"},
        {"ranks": 4, "sglang.pp_size": "2", **TENSOR},
        {"ranks": 2, "engine_url": ("http://127.0.0.1:1",), **TENSOR},
        {**SPLIT, "ranks": 1, "engines": 1, **TENSOR},
    ],
    ids=["way", "stages", "foreign", "apart"],
)
def test_no_handles_where_an_engine_cannot_take_them(prepared: Prepared, flags: dict[str, Any]) -> None:
    run = on_gpus(prepared, flags)
    bundles = bundles_of(run)
    found = place(cast("Cluster", Hosts([(HERE, number) for number in range(len(bundles))])), run)
    assert sources_of(found, run) == []


def test_without_gpus_a_host_is_the_device(prepared: Prepared) -> None:
    run = replace(on_gpus(prepared, {"engines": 2, "sglang.tp_size": "2", **TENSOR}), gpu=False)
    workers = [slot(THERE), slot(HERE), slot(HERE)]
    engines: list[Nodes] = [(slot(HERE),), (slot(THERE),)]
    placement = Placement(workers=workers, engines=engines, frozen=[])
    assert sources_of(placement, run) == [(1, 1), (0, 0)]
    assert sources_of(replace(placement, workers=workers[1:]), run) == [], "one engine is far: all by value"


def test_an_engine_process_is_on_one_host(prepared: Prepared) -> None:
    on = [(HERE, 0), (HERE, 1), (HERE, 2), (THERE, 0)]
    said = (
        f"each of 2 engine processes takes 2 GPUs of one host, and the train workers have 3 on {HERE}, 1 on"
    )
    with pytest.raises(ConfigError, match=said):
        placed(prepared, on, {"engines": 2, "sglang.tp_size": "2"})


@pytest.mark.full  # that a bundle's process sees its GPUs: `rlcore_testing.clusters` asks it of every cluster
async def test_each_process_sees_its_own_gpus(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster of Ray that declares eight GPUs: an engine process has those of two train workers."""
    monkeypatch.setenv("PYTHONPATH", str(Path(seeing_engine.__file__).parent))  # of Ray's workers
    part = Part(name="seeing", factory="seeing_engine:SeeingEngine", config=EngineConfig())
    run = on_gpus(prepared, {"ranks": 8, "engines": 2})
    run = replace(run, resolved=replace(run.resolved, engine=part))
    with opened(run.resolved.cluster, ()) as (cluster, reaper):
        reaper.start()
        cluster.connect(cpus=cpus_of(bundles_of(run)), gpus=8, remove=reaper.remove)
        placement = place(cluster, run)
        workers = [
            cluster.actor(seeing_engine.Worker, gpus=slot.gpus, bundle=slot.bundle)
            for slot in placement.workers
        ]
        assert await asyncio.gather(*(one.call("gpus") for one in workers)) == list("01234567")
        servers = Servers(cluster, run.resolved, "secret", Spares(limit=0))
        logs = [[tmp_path / f"{engine}-{node}" for node in range(2)] for engine in range(2)]
        launchers = [
            servers.launcher(
                f"Engine {engine}",
                nodes,
                [launch(port=0, node=node, log_path=str(log)) for node, log in enumerate(logs[engine])],
                lambda url: EngineClient(url, "secret"),
            )
            for engine, nodes in enumerate(placement.engines)
        ]
        clients = await asyncio.gather(*(launcher.start() for launcher in launchers))
        files = [Path(f"{log}.gpus") for of_engine in logs for log in of_engine]
        wait_for(lambda: all(file.exists() and file.read_text() for file in files))
        for client, launcher in zip(clients, launchers, strict=True):
            await client.close()
            await launcher.stop()
    assert [file.read_text() for file in files] == ["0,1", "2,3", "4,5", "6,7"]
