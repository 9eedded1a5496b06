"""Import what a record names."""

import importlib
from functools import reduce
from typing import Any

from rlcore.api.errors import PluginError, RlcoreError, one_line


def load(factory: str, name: str) -> Any:
    """The attribute that `factory` ("package.module:attribute") names, imported now.

    PluginError if there is none, or its module fails; `name`: of the part that it belongs to.
    """
    module, _, attribute = factory.partition(":")
    try:
        return reduce(getattr, attribute.split("."), importlib.import_module(module))
    except RlcoreError:
        raise
    except (Exception, SystemExit) as error:  # an import does not end rlcore
        plain = isinstance(error, ImportError | AttributeError)
        why = error if plain else one_line(error)
        raise PluginError(f"{name!r} cannot be loaded from {factory!r}: {why}.") from error
