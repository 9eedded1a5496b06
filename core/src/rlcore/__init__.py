"""rlcore: reinforcement-learning post-training of language models, made of plugins.

`from rlcore import Sample, Component, hookimpl`: `__init__.pyi` lists the public names. Each is loaded when
it is asked for.
"""

from typing import Any

import lazy_loader

from rlcore.deprecated import DEPRECATED, warn_of

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    value = _public(name)
    if name in DEPRECATED:
        globals().pop(name, None)  # lazy_loader keeps it there, where nobody would be warned
        warn_of(name)
    return value
