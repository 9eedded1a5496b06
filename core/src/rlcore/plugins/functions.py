"""Parts made of the plain functions in a plugin file without hooks. A part has the function's name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rlcore.api.config import NAME
from rlcore.api.records import Component, Kind


def components(module: ModuleType) -> Iterator[tuple[Kind, Component]]:
    """The functions with the parameters of a generator or of a reward. Other functions are helpers.

    `__all__` names others, which the file imports or makes: TRL's rewards, for example.
    """
    named = getattr(module, "__all__", ())
    for name, function in vars(module).items():
        own = inspect.isfunction(function) and function.__module__ == module.__name__
        if not own and not (name in named and callable(function) and not inspect.isclass(function)):
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
