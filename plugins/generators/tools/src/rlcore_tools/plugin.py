"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="tools",
        factory="rlcore_tools.generator:Tools",
        config="rlcore_tools.config:ToolsConfig",
        summary="turns with tools: Python functions and MCP servers",
    )
