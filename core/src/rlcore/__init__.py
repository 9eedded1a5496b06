"""rlcore: reinforcement-learning post-training of language models, made of plugins.

`from rlcore import Sample, Component, hookimpl`: `__init__.pyi` lists the public names. Each is loaded when
it is asked for.
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

import lazy_loader

from rlcore.api.errors import MissingPackageError
from rlcore.deprecated import DEPRECATED, warn_of

_public, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
_OF_CLI = ("Run", "evaluate", "plan", "train")
"""Names that rlcore-cli brings: they start its program."""
__all__ += _OF_CLI
__dir__ = __all__.copy
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    value = _of_cli(name) if name in _OF_CLI else _public(name)
    if name in DEPRECATED:
        globals().pop(name, None)  # lazy_loader keeps it there, where nobody would be warned
        warn_of(name)
    return value


@cache
def _of_cli(name: str) -> Any:
    for found in entry_points(group="rlcore.python", name=name):
        return found.load()
    raise MissingPackageError(f"rlcore.{name} needs the rlcore program: pip install rlcore-cli.")
