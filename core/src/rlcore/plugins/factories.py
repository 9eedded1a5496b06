"""Check that a plugin's factory exists without running its module, which may import torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from rlcore.api.errors import PluginError
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
            raise PluginError(f"{who}: {where} has no {wanted!r}, which is to make it.")
        return
    spec = _spec(module, who)
    if spec is None:
        raise PluginError(f"{who}: there is no module {module!r}, whose {wanted!r} is to make it.")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return  # compiled, or from an archive: the import will tell
    try:
        names = set(_bound(ast.parse(Path(spec.origin).read_bytes()).body))
    except (SyntaxError, ValueError) as error:
        raise PluginError(f"{who}: {spec.origin} is no Python: {error}.") from error
    if not names & {wanted, "*", "__getattr__"}:
        raise PluginError(f"{who}: {spec.origin} has no {wanted!r}, which is to make it.")


def _spec(module: str, who: str) -> ModuleSpec | None:
    """Where the module is; None: it does not exist. Imports the packages around it."""
    try:
        return find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise PluginError(f"{who}: {module!r} cannot be imported: {error}.") from error
    except Exception as error:
        raise PluginError(
            f"{who}: {module!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that statements of a module bind, those within `if`, `try` and `with` too."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
                elif isinstance(node, ast.stmt) and node is not statement:
                    yield from _bound([node])
