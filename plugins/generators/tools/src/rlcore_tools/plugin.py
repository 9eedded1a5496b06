"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_tools.config import ToolsConfig


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="tools",
        factory="rlcore_tools.generator:Tools",
        config=ToolsConfig,
        summary="turns with tools: Python functions and MCP servers",
    )
