"""Checks of a policy that trains an adapter over its base, in place of the model's own weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcore.api.errors import ModelError
from rlcore.api.lora import ADAPTER_CONFIG
from rlcore.api.roles import BASE, START
from rlcore.api.run_config import RunConfig
from rlcore.compose.sentences import unread
from rlcore.engines.engine import Engine


def overlay_complaints(run: RunConfig) -> Iterator[str]:
    """Settings of an adapter that there is not, and what the reference and further policies make of one."""
    if not run.has_overlay:
        names = [f"lora.{name}" for name in type(run.lora).model_fields]
        yield from unread(run, names, "the run has no adapter; add --lora.rank")
    yield from _reference_complaints(run)
    for name, policy in run.policies.items():
        if not run.has_overlay or run.lora.publish == "merged":
            yield f"--policy.{name}: it is an adapter; add --lora.rank and --lora.publish adapter."
        if not (policy.rank or run.lora.rank):
            yield f"--policy.{name}.rank: found none, and --lora.from has a rank of its own; give it."


def _reference_complaints(run: RunConfig) -> Iterator[str]:
    """A reference that is one with the policy has no settings of its own."""
    if not run.has_overlay:
        if run.reference.model == BASE:
            yield f"--reference.model: found {BASE}, but the run has no adapter; expected {START}."
        return
    if run.reference.placement == "swapped":
        yield "--reference.placement: found swapped, but the policy has an adapter; leave one out."
    if run.reference.model in (START, BASE):
        reason = "the reference is the policy without its training; leave it out"
        yield from unread(run, ("reference.placement", "reference.refresh_every"), reason)
    if run.lora.source and run.reference.model == START:
        reason = f"the reference has the adapter of --lora.from; add --reference.model {BASE}"
        yield from unread(run, ("reference.ranks",), reason)


def engine_complaints(run: RunConfig, engine: Engine[Any]) -> Iterator[str]:
    """A publication of the adapter alone to an engine that cannot add it."""
    if not engine.takes_overlays and run.lora.publish == "adapter":
        yield f"--lora.publish: the engine {engine.name!r} takes whole weights; leave it out."


def check_whole(weights: Path, at: str) -> None:
    """ModelError where the folder `weights` of a checkpoint holds an adapter without its base."""
    if (weights / ADAPTER_CONFIG).is_file():
        raise ModelError(f"{at}: it holds an adapter alone; give what rlcore export makes of the run.")
