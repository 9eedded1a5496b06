"""What this distribution registers."""

from collections.abc import Iterable

from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component
from rlcore_tools.config import ToolsConfig


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="tools",
        factory="rlcore_tools.generator:Tools",
        config=ToolsConfig,
        summary="turns with tools: Python functions and MCP servers",
    )
