"""Which devices hold the train workers and which the engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlcore.errors import ConfigError
from rlcore.runtime.engine_checks import CPU_ENGINE
from rlcore.runtime.trainer import Slot

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.runtime.cluster import Cluster
    from rlcore.runtime.prepared import Prepared, Served

# Trainer and engine on one device: each takes a share, and the shares of both fit into one GPU.
_SHARED = 0.5


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A slot for each train worker, each worker that has only a critic, and each engine's supervisor."""

    workers: list[Slot]
    critics: list[Slot]
    engines: list[Slot]


def place(cluster: Cluster, prepared: Prepared) -> Placement:
    """Reserve the devices of the whole run in one placement group, or refuse in one sentence.

    Engines serve on the loopback, and rank 0 leaves the weights where they can read them: both must be on
    this host, the other ranks anywhere.
    """
    placement = _reserved(cluster, prepared)
    if placement.engines:
        cluster.require_here({"train worker 0": placement.workers[0].bundle, **_named(placement.engines)})
    return placement


def _named(engines: Sequence[Slot]) -> dict[str, tuple[Any, int]]:
    return {f"engine {number}": slot.bundle for number, slot in enumerate(engines)}


def _reserved(cluster: Cluster, prepared: Prepared) -> Placement:
    """On GPUs a worker takes one, and so does one that has only a critic; `colocate` puts engine i on the
    device of worker i, `split` gives it devices of its own (as many as its tensor-parallel size). Without a
    GPU there are only CPUs to count.
    """
    run, engines = prepared.resolved.run, prepared.engines
    engine_gpus = _engine_gpus(prepared)
    if prepared.gpu != bool(cluster.gpus):
        raise ConfigError(
            f"--ray-address {cluster.address}: that cluster offers {cluster.gpus} GPUs, but torch finds "
            f"{'some' if prepared.gpu else 'none'} where this command runs: start it on a machine like the "
            "cluster's, or hide the GPUs from one of them with CUDA_VISIBLE_DEVICES."
        )
    ranks, critics = run.ranks, critic_ranks(run)
    apart = range(ranks, ranks + critics)
    if not prepared.gpu:
        bundles: list[dict[str, float]] = [{"CPU": 1}] * (ranks + critics + engines)
        group = cluster.place(bundles, "The train workers and engines")
        return Placement(
            workers=[Slot(bundle=(group, index), gpus=0) for index in range(ranks)],
            critics=[Slot(bundle=(group, index), gpus=0) for index in apart],
            engines=[Slot(bundle=(group, apart.stop + index), gpus=0) for index in range(engines)],
        )
    if run.placement == "split" or not engine_gpus:
        an_engine: dict[str, float] = {"CPU": 1, "GPU": engine_gpus} if engine_gpus else {"CPU": 1}
        a_worker: dict[str, float] = {"CPU": 1, "GPU": 1}
        bundles = [a_worker] * (ranks + critics) + [an_engine] * engines
        group = cluster.place(bundles, "The train workers and engines")
        return Placement(
            workers=[Slot(bundle=(group, index), gpus=1) for index in range(ranks)],
            critics=[Slot(bundle=(group, index), gpus=1) for index in apart],
            engines=[Slot(bundle=(group, apart.stop + i), gpus=engine_gpus) for i in range(engines)],
        )
    if engine_gpus > 1 or engines > run.ranks:
        raise ConfigError(
            f"--placement colocate puts each engine on the device of one train worker, and --engines "
            f"{engines} with {engine_gpus} GPUs each do not fit on {run.ranks}: use --placement split."
        )
    group = cluster.place([{"CPU": 2, "GPU": 1}] * (ranks + critics), "The train workers")
    return Placement(
        workers=[Slot(bundle=(group, index), gpus=_SHARED) for index in range(ranks)],
        critics=[Slot(bundle=(group, index), gpus=1) for index in apart],
        engines=[Slot(bundle=(group, index), gpus=_SHARED) for index in range(engines)],
    )


def place_engines(cluster: Cluster, served: Served) -> list[Slot]:
    """The devices of engines without a trainer beside them: as many GPUs each as their parallel size."""
    gpus = _engine_gpus(served) if served.gpu else 0
    if gpus and not cluster.gpus:
        raise ConfigError(
            f"--ray-address {cluster.address}: that cluster offers no GPUs, but torch finds some where this "
            "command runs; hide them with CUDA_VISIBLE_DEVICES, or name another cluster."
        )
    bundle: dict[str, float] = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
    group = cluster.place([bundle] * served.resolved.run.engines, "The engines")
    slots = [Slot(bundle=(group, index), gpus=gpus) for index in range(served.resolved.run.engines)]
    cluster.require_here(_named(slots))
    return slots


def critic_ranks(run: RunConfig) -> int:
    """Workers that have only a critic: as many as the policy's, or none."""
    return run.ranks if run.critic_workers == "separate" else 0


def _engine_gpus(prepared: Served) -> int:
    """Devices of one engine; `local` computes on the CPU."""
    if prepared.resolved.engine.name == CPU_ENGINE:
        return 0
    fields = {name.replace("-", "_"): value for name, value in prepared.resolved.sglang.items()}
    sizes = [fields.get("tp_size", fields.get("tensor_parallel_size", 1)), fields.get("pp_size", 1)]
    return math.prod(int(size) for size in [*sizes, fields.get("dp_size", 1)])
