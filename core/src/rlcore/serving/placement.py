"""Which devices hold the train workers and which the engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from rlcore.api.errors import ConfigError
from rlcore.compose.run_checks import check_engine_placement
from rlcore.workers.trainer_group import BundleSlot

if TYPE_CHECKING:
    from rlcore.api.cluster import Bundle, Cluster
    from rlcore.compose.resolved import Resolved
    from rlcore.engines.publish import Publisher
    from rlcore.preparation.prepared import Prepared, Served

Nodes = tuple[BundleSlot, ...]
"""The slots of one engine, one for each of its nodes. Requests go to the first node."""


_NO_DEVICE: Mapping[bool, tuple[str, ...]] = {True: (), False: ("",)}
"""The devices of a slot that names none, by whether the run has GPUs: a CPU's is the memory of its host."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A slot for each train worker, each worker of a role that has some of its own, each frozen model and
    each rollout worker; those of each engine."""

    workers: list[BundleSlot] = field(default_factory=list)
    roles: dict[str, list[BundleSlot]] = field(default_factory=dict)
    engines: list[Nodes] = field(default_factory=list)
    frozen: list[BundleSlot] = field(default_factory=list)
    rollouts: list[BundleSlot] = field(default_factory=list)


def bundles_of(prepared: Prepared) -> list[Bundle]:
    """The bundles of a run: first its frozen models, then its workers, then those of roles with some of their
    own, then the nodes of its engines, if engines have devices of their own. Its rollout workers come last.

    With GPUs, each worker takes one. `colocate` puts an engine of k GPUs on those of k workers. `split` gives
    it devices of its own, one for each of its ranks, divided among its nodes. A frozen model always has
    devices of its own. Without a GPU only CPUs count. `ConfigError` if engines do not fit.
    """
    if not prepared.trains:
        return served_bundles(prepared)
    run, engines = prepared.resolved.run, prepared.engines
    workers = run.ranks + sum(role.ranks for role in prepared.resolved.roles.values())
    if prepared.gpu:
        engine = prepared.resolved.engine.build()
        check_engine_placement(engine, run, engines, prepared.engine_fields, prepared.hf_config)
    if not _is_colocated(prepared):
        a_worker: dict[str, float] = {"CPU": 1, "GPU": 1} if prepared.gpu else {"CPU": 1}
        return _with_others(prepared, [a_worker] * workers + [_node(prepared)] * engines * _nodes(prepared))
    # Two CPUs: the supervisor of the engine on this GPU reserves the second one.
    return _with_others(prepared, [{"CPU": 2, "GPU": 1}] * workers)


def served_bundles(served: Served) -> list[Bundle]:
    """The bundles of engines without a trainer: first the frozen models, then the nodes of each engine, then
    the rollout workers.
    """
    return _with_others(served, [_node(served)] * served.engines * _nodes(served))


def cpus_of(bundles: Sequence[Bundle]) -> int:
    """CPUs of a local cluster for `bundles`."""
    return int(sum(bundle["CPU"] for bundle in bundles)) + 1


def place(cluster: Cluster, prepared: Prepared) -> Placement:
    """Reserve the devices of the whole run in one placement group, or refuse in one sentence."""
    if prepared.gpu != bool(cluster.gpus):
        raise ConfigError(
            f"--cluster {prepared.resolved.cluster.name}: it offers {cluster.gpus} GPUs, but torch finds "
            f"{'some' if prepared.gpu else 'none'} where this command runs: start it on a machine like the "
            "cluster's, or hide the GPUs from one of them with CUDA_VISIBLE_DEVICES."
        )
    if not prepared.trains:
        return place_engines(cluster, prepared)
    run, is_colocated = prepared.resolved.run, _is_colocated(prepared)
    what = "The train workers" if is_colocated else "The train workers and engines"
    placement, slots = _placed(cluster, prepared, bundles_of(prepared), what, numbered=is_colocated)
    # In the order of `bundles_of`: train workers, roles with workers of their own, engines.
    left = iter(slots)
    workers = list(islice(left, run.ranks))
    roles = {
        name: list(islice(left, role.ranks)) for name, role in prepared.resolved.roles.items() if role.ranks
    }
    engines = _over_workers(workers, prepared) if is_colocated else _by_engine(list(left), _nodes(prepared))
    placement = replace(placement, workers=workers, roles=roles, engines=engines)
    if placement.engines:
        check_publication(cluster, placement, prepared.resolved)
    return placement


def check_frozen(cluster: Cluster, slots: Sequence[BundleSlot]) -> None:
    """`ConfigError` if a frozen model would run elsewhere: rewards ask it on the loopback."""
    for slot in slots:
        if not slot.is_here:
            raise ConfigError(
                f"--cluster: a frozen model would run on {slot.host}, and must be "
                f"beside this command, on {cluster.here}: make room there, or start its server yourself and "
                "name its URL."
            )


def check_publication(cluster: Cluster, placement: Placement, resolved: Resolved) -> None:
    """`ConfigError` if new weights would not reach an engine.

    Whole versions lie on the host of this command, where the first rank and the engines must be too. Buckets
    come from the memory of the ranks, wherever those are; some ways need a rank on the host of each engine.
    """
    engine = resolved.engine.build()
    way, flag = engine.config.publish, f"--cluster {resolved.cluster.name}"
    publisher = engine.publisher(weights_dir="", model_path="", dtype="fp32")  # asked what it is, and no more
    if not placement.workers[0].is_here and not publisher.is_streamed:
        raise ConfigError(
            f"{flag}: train worker 0 would run on {placement.workers[0].host}, and --engine.publish {way} "
            f"needs it beside this command, on {cluster.here}: make room there, or take another way."
        )
    reached = {slot.host for slot in placement.workers} if publisher.is_by_host else {cluster.here}
    for number, nodes in enumerate(placement.engines):
        far = [slot.host for slot in nodes if slot.host not in reached]
        ways = engine.cross_host_ways(spanning=len(nodes) > 1)
        if far and way not in ways:
            also = f"take --engine.publish {' or '.join(ways)}, " if ways else ""
            near = ", ".join(sorted(reached))
            raise ConfigError(
                f"{flag}: engine {number} would run on {far[0]}, and --engine.publish {way} reaches none "
                f"but those on {near}: {also}make room there, or start the engines yourself and name them "
                "with --engine-url."
            )
        away = [slot.host for slot in (placement.workers[0], *nodes) if not slot.is_here]
        if away and resolved.run.serving.check_weights_every:
            raise ConfigError(
                "--check-weights-every has an engine read the weights from a file that train worker 0 wrote, "
                f"and one of them would run on {away[0]}, not beside this command: leave it out."
            )


def _over_workers(workers: Sequence[BundleSlot], prepared: Prepared) -> list[Nodes]:
    """The slots of engines on the devices of `workers`. A node takes neighboring workers of one host.

    Its supervisor runs beside the first of these workers and reserves no GPU: the worker has it.
    """
    nodes, gpus = _nodes(prepared), _engine_gpus(prepared) // _nodes(prepared)
    # `_placed` has put the workers of a host side by side, in the order of their devices.
    by_host = [(host, list(slots)) for host, slots in groupby(workers, lambda slot: slot.host)]
    runs = [
        slots[start : start + gpus] for _, slots in by_host for start in range(0, len(slots) - gpus + 1, gpus)
    ]
    if len(runs) < (needed := prepared.engines * nodes):
        raise ConfigError(
            f"--placement colocate: each of {needed} engine processes takes {gpus} GPUs of one host, and the "
            f"train workers have {', '.join(f'{len(slots)} on {host}' for host, slots in by_host)}: use "
            "engines that span hosts, or --placement split."
        )
    places = [
        replace(run[0], gpus=0, devices=tuple(device for slot in run for device in slot.devices))
        for run in runs[:needed]
    ]
    return _by_engine(places, nodes)


def _is_colocated(prepared: Prepared) -> bool:
    """Whether engines are on the devices of train workers."""
    return prepared.shares_gpu and prepared.engines * _engine_gpus(prepared) > 0


def place_engines(cluster: Cluster, served: Served) -> Placement:
    """The slots of engines without a trainer, which keep the weights of the model's files, and those of
    frozen models and rollout workers.
    """
    if _engine_gpus(served) and not cluster.gpus:
        raise ConfigError(
            f"--cluster {served.resolved.cluster.name}: it offers no GPUs, but torch finds some where this "
            "command runs; hide them with CUDA_VISIBLE_DEVICES, or name another cluster."
        )
    placement, slots = _placed(cluster, served, served_bundles(served), "The engines")
    return replace(placement, engines=_by_engine(slots, _nodes(served)))


def _with_others(served: Served, bundles: Sequence[Bundle]) -> list[Bundle]:
    """The bundles of the frozen models, then `bundles`, then those of the rollout workers. Frozen models come
    first: they must be here. Rollout workers may be anywhere.
    """
    cpus = max((bundle["CPU"] for bundle in bundles), default=1)
    gpus = [_gpus(served, model.fields) for model in served.frozen]
    frozen: list[Bundle] = [{"CPU": cpus, "GPU": count} if count else {"CPU": cpus} for count in gpus]
    rollouts: list[Bundle] = [{"CPU": 1}] * served.rollout_workers
    return [*frozen, *bundles, *rollouts]


def _placed(
    cluster: Cluster, served: Served, bundles: Sequence[Bundle], what: str, *, numbered: bool = False
) -> tuple[Placement, list[BundleSlot]]:
    """A slot for each of `bundles`: the placement of what `_with_others` has added, and the other slots.

    Among equal ones, those of this host come first, and hosts stay together. `numbered`: the slots name their
    devices, and those of one host are in the order of their devices.
    """
    if not bundles:  # a cluster need not reserve nothing
        return Placement(), []
    frozen, end = len(served.frozen), len(bundles) - served.rollout_workers
    others = ["frozen models"] * bool(frozen) + ["rollout workers"] * bool(served.rollout_workers)
    what = f"{what}, with {' and '.join(others)}," if others else what
    try:
        group, here = cluster.place(bundles, what), cluster.here
    except ConfigError as error:
        if sum(bundle.get("GPU", 0) for bundle in bundles) <= cluster.gpus:
            raise  # other things are too few
        flag = served.resolved.engine.build().stays_on_cpu
        or_cpu = f", or {flag}" if flag and _engine_gpus(served) else ""
        raise ConfigError(f"{str(error).removesuffix('.')}{or_cpu}.") from error
    devices = cluster.devices(group) if numbered else [()] * len(bundles)
    slots = [
        BundleSlot(
            bundle=(group, index), gpus=bundle.get("GPU", 0), host=host, is_here=host == here, devices=ids
        )
        for index, (bundle, host, ids) in enumerate(zip(bundles, cluster.hosts(group), devices, strict=True))
    ]

    def order(slot: BundleSlot) -> tuple[bool, str, list[tuple[int, str]]]:
        # By length first, so that device 10 comes after device 9.
        return not slot.is_here, slot.host, [(len(device), device) for device in slot.devices]

    # The cluster puts a bundle on any host that has room, so bundles of one size are interchangeable: each
    # place in the list takes the next best of its size.
    by_gpus: dict[float, Iterator[BundleSlot]] = {
        gpus: iter(sorted((slot for slot in slots if slot.gpus == gpus), key=order))
        for gpus in {slot.gpus for slot in slots}
    }
    sorted_slots = [next(by_gpus[slot.gpus]) for slot in slots]
    check_frozen(cluster, sorted_slots[:frozen])
    others_placed = Placement(frozen=sorted_slots[:frozen], rollouts=sorted_slots[end:])
    return others_placed, sorted_slots[frozen:end]


def _node(served: Served) -> dict[str, float]:
    """The bundle of one node of an engine."""
    gpus = _engine_gpus(served)
    return {"CPU": 1, "GPU": gpus / _nodes(served)} if gpus else {"CPU": 1}


def _by_engine(slots: Sequence[BundleSlot], nodes: int) -> list[Nodes]:
    return [tuple(slots[start : start + nodes]) for start in range(0, len(slots), nodes)]


def sources_of(placement: Placement, prepared: Prepared) -> list[tuple[int, ...]]:
    """For each engine, the train rank on the device of each of its ranks. On a CPU the host is the device.

    Empty unless every engine takes weights by handle and every rank of an engine shares its device.
    """
    engine = prepared.resolved.engine.build()
    fields = [prepared.fields_of(number) for number in range(len(placement.engines))]
    if not all(engine.takes_handles(table) for table in fields):
        return []
    held: dict[tuple[str, str], int] = {}
    for rank, slot in enumerate(placement.workers):
        for device in slot.devices or _NO_DEVICE[prepared.gpu]:
            # The first rank where several share a device, as all of a host do on the CPU.
            held.setdefault((slot.host, device), rank)
    wanted = [
        [
            (slot.host, device)
            for slot in nodes
            for device in slot.devices or _NO_DEVICE[prepared.gpu] * (engine.devices(table) // len(nodes))
        ]
        for nodes, table in zip(placement.engines, fields, strict=True)
    ]
    if not all(places and held.keys() >= set(places) for places in wanted):
        return []
    return [tuple(held[place] for place in places) for places in wanted]


def senders(
    placement: Placement, publisher: Publisher, sources: Sequence[Sequence[int]] = ()
) -> frozenset[int]:
    """The ranks from which engines take new weights: the first one, the first on each engine's host, or all
    `sources`.
    """
    if sources:
        return frozenset(rank for ranks in sources for rank in ranks)
    if not publisher.is_by_host:
        return frozenset({0})
    hosts = [slot.host for slot in placement.workers]
    first_ranks = {hosts.index(slot.host) for nodes in placement.engines for slot in nodes}
    # Without engines too there is one, which tells the driver what it wrote.
    return frozenset(first_ranks or {0})


def _engine_gpus(prepared: Served) -> int:
    """Devices of one engine."""
    return _gpus(prepared, prepared.resolved.engine_fields)


def _gpus(served: Served, fields: Mapping[str, Any]) -> int:
    """Devices of a server with these fields; 0: it computes on the CPU."""
    return int(served.resolved.engine.build().devices(fields)) if served.gpu else 0


def _nodes(served: Served) -> int:
    """Nodes of one engine."""
    return int(served.resolved.engine.build().nodes(served.resolved.engine_fields))
