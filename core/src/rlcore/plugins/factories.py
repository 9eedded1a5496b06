"""Check that a plugin's factory exists without running its module, which may import torch."""

import dis
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

from rlcore.api.errors import PluginError, one_line
from rlcore.plugins.registry import PluginInfo


def check_factory(factory: str, name: str, plugin: PluginInfo | None = None) -> None:
    """Raises `PluginError` where "package.module:attribute" does not exist.

    `name`: of the part. `plugin`: whose part it is, where that is known.
    """
    who = repr(name) if plugin is None or plugin.is_file else f"{name!r} of {plugin}"
    module, _, attribute = factory.partition(":")
    wanted = attribute.partition(".")[0]
    if module in sys.modules:
        if not hasattr(sys.modules[module], wanted):
            where = getattr(sys.modules[module], "__file__", None) or module
            raise PluginError(f"{who}: its factory is {factory!r}, and {where} has no {wanted!r}.")
        return
    spec = _spec(module, who)
    if spec is None:
        raise PluginError(f"{who}: its factory is {factory!r}, and there is no module {module!r}.")
    try:
        code = spec.loader.get_code(module) if isinstance(spec.loader, InspectLoader) else None
    except (EOFError, ImportError):
        return  # compiled by another Python: the import will tell
    except (SyntaxError, ValueError) as error:
        raise PluginError(f"{who}: {spec.origin} is no Python: {error}.") from error
    if code is None:
        return  # without a source: the import will tell
    binds = ("STORE_NAME", "STORE_GLOBAL")
    names = {step.argval for step in dis.get_instructions(code) if step.opname in binds}
    # `from x import *` may bring any name, and `__getattr__` may make it.
    if names.isdisjoint((wanted, "__getattr__")) and ("*",) not in code.co_consts:
        raise PluginError(f"{who}: its factory is {factory!r}, and {spec.origin} has no {wanted!r}.")


def _spec(module: str, who: str) -> ModuleSpec | None:
    """Where the module is; None: it does not exist. Imports the packages around it."""
    try:
        return find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise PluginError(f"{who}: {module!r} cannot be imported: {error}.") from error
    except Exception as error:
        raise PluginError(f"{who}: {module!r} cannot be imported: {one_line(error)}.") from error
