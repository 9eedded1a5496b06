"""Parts made of the plain functions in a plugin file without hooks. A part has the function's name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rlcore.api.config import NAME
from rlcore.api.records import Component, Kind


def components(module: ModuleType) -> Iterator[tuple[Kind, Component]]:
    """The functions with the parameters of a generator or of a reward. Other functions are helpers."""
    for name, function in vars(module).items():
        if not (inspect.isfunction(function) and function.__module__ == module.__name__):
            continue
        kind = _kind(function) if NAME.fullmatch(name) else None
        if kind is not None:
            summary = (inspect.getdoc(function) or "a function").splitlines()[0]
            yield kind, Component(name=name, factory=f"{module.__name__}:{name}", summary=summary)


def _kind(function: Any) -> Kind | None:
    from rlcore.plugins.function_reward import scores  # spares other commands the import

    if inspect.iscoroutinefunction(function) and list(inspect.signature(function).parameters) == GENERATES:
        return Kind.GENERATOR
    return Kind.REWARD if scores(function) else None


GENERATES = ["ctx", "sample"]
"""The parameters of a generator: `async def generate(ctx, sample)`."""
