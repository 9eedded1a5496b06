"""Checks of the engines before one is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlcore.errors import ConfigError

if TYPE_CHECKING:
    from rlcore.compose.resolved import Inference, Resolved
    from rlcore.runtime.prepared import Prepared


def check_external(prepared: Prepared) -> None:
    """The servers of `--engine-url` answer, with the run's model."""
    if not prepared.engine_urls:
        return  # spares the driver aiohttp's import
    from rlcore.engines.external import Wanted, check_all

    wanted = Wanted(
        model_type=prepared.hf_config["model_type"],
        dtype=prepared.model.dtype,
        context_length=prepared.context_length,
    )
    check_all(prepared.engine_urls, wanted, limit_s=prepared.resolved.run.engine_health_limit)


def check_router(chosen: Inference) -> None:
    """What `--router` runs is installed."""
    if chosen.run.router is not None:
        from rlcore.engines.router import require_router

        require_router()


def check_ports(first: int | None, engines: int) -> None:
    """`--engine.port` and those after it can be listened on."""
    from rlcore.network import is_free

    for port in range(first, first + engines) if first else ():
        if not is_free(port):
            raise ConfigError(
                f"--engine.port: found {first} for {engines} engines, but port {port} of this machine is in "
                "use, or none; name another."
            )


def checked_engine(chosen: Inference) -> Mapping[str, Any]:
    """The fields of the engine's server, which knows them all and is installed."""
    engine = chosen.engine.build()
    fields = chosen.engine_fields
    if chosen.run.replay_routing:
        if engine.routing_fields is None:
            raise ConfigError(
                f"--replay-routing: found true, but the engine {chosen.engine.name!r} does not give the "
                "experts that it chose; leave it out, or take --engine local or sglang."
            )
        fields = {**fields, **engine.routing_fields}
    engine.check(fields)
    engine.nodes(fields)
    check_ports(engine.config.port, chosen.run.engines)
    return fields


def check_placement(resolved: Resolved, gpu: bool) -> None:
    """`split` gives engines devices of their own: there must be devices, and an engine that uses them."""
    if resolved.run.placement == "colocate" or (
        gpu and resolved.engine.build().devices(resolved.engine_fields)
    ):
        return
    reason = (
        f"--engine {resolved.engine.name} computes on the CPU" if gpu else "this machine has no GPU to divide"
    )
    raise ConfigError(f"--placement: found split, but {reason}; leave the flag out.")
