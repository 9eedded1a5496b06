"""Checks of the engines before one is started."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.api.columns import REPLAYS
from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError
from rlcore.api.factory import load
from rlcore.compose.engine_groups import ENGINE_GROUP, FLAG, engine_groups, group_fields
from rlcore.compose.overlay_checks import engine_complaints
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.sentences import refuse
from rlcore.engines.engine import Engine
from rlcore.preparation.prepared import Prepared
from rlcore_machine.network import is_free


def check_external(prepared: Prepared) -> None:
    """Check that the servers of `--engine-url` answer and have the run's model."""
    if not prepared.engine_urls:
        return  # spares the driver aiohttp's import
    from rlcore.engines.external import Wanted, check_all

    wanted = Wanted(
        model_type=prepared.hf_config["model_type"],
        dtype=prepared.model.dtype,
        context_length=prepared.resolved.context_length,
    )
    engine = prepared.resolved.engine
    client = load(engine.build().client, engine.name)
    check_all(prepared.engine_urls, wanted, client, limit_s=prepared.resolved.run.serving.engine_health_limit)


def check_router(chosen: Inference) -> None:
    """Check that the router of `--router` is installed."""
    if (policy := chosen.run.serving.router) is not None:
        load(chosen.engine.config.routers[policy], chosen.engine.name).check()


def check_ports(first: int | None, engines: int) -> None:
    """Check that `--engine.port` and the ports after it are free."""
    among = f" for {engines} engines" if engines > 1 else ""
    for port in range(first, first + engines) if first else ():
        if not is_free(port):
            raise ConfigError(
                f"--engine.port: found {first}{among}, but port {port} is in use, or does not exist; "
                "name another."
            )


def checked_engine(chosen: Inference) -> Mapping[str, Any]:
    """The fields of the engine's server, after checking that it is installed and knows them."""
    engine = chosen.engine.build()
    fields = chosen.engine_fields
    refuse(ability_complaints(chosen, engine))
    for name, column in REPLAYS.items():
        if column not in chosen.run.loss.replayed:
            continue
        if column not in engine.replay_fields:
            raise ConfigError(
                f"{flag_name(name)}: found true, but the engine {engine.name!r} does not give what it chose; "
                "leave it out, or take another engine."
            )
        fields = {**fields, **engine.replay_fields[column]}
    engine.check(fields)
    if isinstance(chosen, Resolved):
        _check_groups(chosen, engine)
    check_ports(engine.config.port, (chosen.run.serving.engines or 1) + chosen.run.evaluation.eval_engines)
    return fields


def _check_groups(resolved: Resolved, engine: Engine[Any]) -> None:
    """Check the groups of engines: known fields, equal sizes, and every role that another one waits for."""
    fields = {name: group_fields(name, resolved) for name in engine_groups(resolved.run)}
    for name, table in fields.items():
        engine.check(table, table=f"{ENGINE_GROUP}.{name}")

    def size(table: Mapping[str, Any]) -> tuple[int, int]:
        return engine.devices(table), engine.nodes(table)

    sizes = {name: size(table) for name, table in fields.items()}
    if {*sizes.values()} - {size(resolved.engine_fields)}:
        shown = ", ".join(f"{name}: {gpus} GPUs on {nodes} nodes" for name, (gpus, nodes) in sizes.items())
        raise ConfigError(
            f"{FLAG}: found engines of several sizes ({shown}); expected the same GPUs for all, which the "
            f"fields of --{engine.config.table} say."
        )
    served: list[Mapping[str, Any]] = [*fields.values()] or [resolved.engine_fields]
    roles = {engine.router_role(engine.fields_of(0, table)).get("worker_type") for table in served}
    # Engines with a role beside some without one, or all with the same: the router would find nobody for the
    # other half of a request.
    if roles > {None} or len(roles - {None}) == 1:
        served_roles = ", ".join(sorted(role or "both" for role in roles))
        raise ConfigError(
            f"{FLAG}: found engines for {served_roles}; expected a group for prefill, one for decode, and no "
            "other."
        )


def ability_complaints(chosen: Inference, engine: Engine[Any]) -> Iterator[str]:
    """Sentences about what the run needs and its engine can't do."""
    run, name = chosen.run, engine.name
    if not engine.serves_frozen and run.serving.frozen:
        yield f"--frozen: the engine {name!r} serves no frozen models; name their servers by URL."
    if not isinstance(chosen, Resolved):
        return
    if not engine.releases_memory and run.sleep != "none":
        yield (
            f"--sleep: found {run.sleep}, but the engine {name!r} cannot give its memory back while the "
            "trainer works; leave it out."
        )
    yield from engine_complaints(run, engine)
    for policy in run.policies if not engine.takes_policies else ():
        yield f"--policy.{policy}: the engine {name!r} serves one policy at a time; leave it out."
    if not chosen.samples:
        return
    if not engine.gives_log_probs:
        yield (
            f"--engine {name}: it gives no log-probs of the tokens that it samples, which training needs; "
            "take another engine (rlcore eval may use this one)."
        )
    if not engine.aborts and run.asynchrony.partial_rollouts:
        yield f"--partial-rollouts: the engine {name!r} cannot end a request that is under way; leave it out."
    if not engine.takes_weights_under_way and run.asynchrony.is_asynchronous:
        yield (
            f"--max-staleness: found {run.asynchrony.max_staleness}, but the engine {name!r} takes new "
            "weights only while no request is under way; expected 0, without --partial-rollouts."
        )


def check_placement(resolved: Resolved, gpu: bool) -> None:
    """Check that `split` has devices to give to engines, and an engine that uses them."""
    has_gpus = gpu and resolved.engine.build().devices(resolved.engine_fields)
    if resolved.run.placement == "colocate" or has_gpus:
        return
    reason = (
        f"--engine {resolved.engine.name} computes on the CPU" if gpu else "this machine has no GPU to divide"
    )
    raise ConfigError(f"--placement: found split, but {reason}; leave the flag out.")
