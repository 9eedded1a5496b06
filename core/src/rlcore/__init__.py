"""rlcore: reinforcement-learning post-training of language models, made of plugins.

`from rlcore import Sample, Component, hookimpl`: `__init__.pyi` lists the public names. Each is loaded when
it is asked for.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import lazy_loader

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_own, _, _names = lazy_loader.attach_stub(__name__, __file__)
_CLI = "rlcore-cli"
_OF_CLI = ("Run", "evaluate", "plan", "train")
"""Names that rlcore-cli brings: they start its program."""
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    return _of_cli(name) if name in _OF_CLI else _own(name)


def __dir__() -> list[str]:
    return sorted([*_names, *_brought()])


@cache
def _of_cli(name: str) -> Any:
    if name not in _brought():
        from rlcore.api.errors import MissingPackageError

        raise MissingPackageError(f"rlcore.{name} needs the rlcore program: pip install {_CLI}.")
    return _brought()[name].load()


@cache
def _brought() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    # Of no other distribution: none may take over `rlcore.train`.
    return {
        entry.name: entry
        for entry in entry_points(group="rlcore.python")
        if entry.dist is not None and entry.dist.name == _CLI
    }
