"""Check that a plugin's factory exists without running its module, which may import torch."""

from rlcore.api.errors import PluginError
from rlcore.plugins.registry import PluginInfo
from rlcore_machine import attribute_fault


def check_factory(factory: str, name: str, plugin: PluginInfo | None = None) -> None:
    """Raises `PluginError` where "package.module:attribute" does not exist.

    `name`: of the part. `plugin`: whose part it is, where that is known.
    """
    who = repr(name) if plugin is None or plugin.is_file else f"{name!r} of {plugin}"
    if fault := attribute_fault(factory):
        raise PluginError(f"{who}: its factory is {factory!r}, and {fault}.")
