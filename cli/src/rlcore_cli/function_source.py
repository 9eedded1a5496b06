"""Python functions among settings: each is written to a plugin file, which the run ships to its workers."""

import builtins
import dis
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.api.records import NAME, Kind
from rlcore.plugins.files import place_line

EVAL = "eval"


def write_functions(settings: Mapping[str, Any], kinds: Collection[str], folder: Path) -> dict[str, Any]:
    """`settings` with FILE.py:FUNCTION in `folder` for each function that is given for one of `kinds`.

    A kind takes a function or a name, a list of them, or a table of their weights, and so do the kinds in the
    tables of evaluations. Raises `ConfigError` for a function that cannot be written.
    """
    result = dict(settings)
    for name, value in settings.items():
        if name in kinds:
            result[name] = _with_files(name, value, folder)
        elif name == EVAL and isinstance(value, Mapping):
            result[name] = {
                set_name: write_functions(table, kinds, folder) if isinstance(table, Mapping) else table
                for set_name, table in value.items()
            }
    return result


def _with_files(kind: str, value: Any, folder: Path) -> Any:
    if callable(value):
        return _file_of(kind, value, folder)
    if isinstance(value, list | tuple):
        return [_with_files(kind, item, folder) for item in value]
    if (
        kind == Kind.REWARD
        and isinstance(value, Mapping)
        and all(isinstance(weight, int | float) for weight in value.values())
    ):
        return [f"{_with_files(kind, item, folder)}={weight}" for item, weight in value.items()]
    return value


def _file_of(kind: str, function: Callable[..., Any], folder: Path) -> str:
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise ConfigError(
            f"{kind}: found {_description(function)}, expected a function that `def` made, "
            f"'file.py:function', or the name of an installed {kind}."
        )
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise ConfigError(f"{kind}: the source of {name} is not known; write it to a file.") from error
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{kind}: found {name}, expected a name of lower-case letters, digits and underscores."
        )
    imports = "".join(f"{line}\n" for line in _imports(kind, inspect.unwrap(function), source))
    # A decorator's own code has another place.
    place = "" if hasattr(function, "__wrapped__") else place_line(function)
    text = f"from __future__ import annotations\n\n{imports}\n\n{source}{place}"
    file = folder / f"{name}.py"
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise ConfigError(f"{kind}: two functions are called {name}; rename one.")
    file.write_text(text, encoding="utf-8")
    return f"{file}:{name}"


def _description(value: Callable[..., Any]) -> str:
    """The function in a user's words, for its repr shows an address."""
    name = getattr(value, "__name__", None)
    if name == "<lambda>":
        return "a lambda"
    kind = type(value).__name__
    return f"the {kind.replace('_', ' ')} {name}" if name else f"an object of {kind}"


def _imports(kind: str, function: Any, source: str) -> Iterator[str]:
    """What the function uses of its module, as imports. `ConfigError` for what cannot be imported."""
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise ConfigError(
            f"{kind}: {function.__name__} uses {names} of the function around it; write it to a file."
        )
    # Annotations are not run, but defaults and decorators are.
    code = compile(f"from __future__ import annotations\n{source}", function.__name__, "exec")
    for name in sorted(set(_names(code)) & {*function.__globals__} - {*vars(builtins)}):
        value = function.__globals__[name]
        module = getattr(value, "__module__", None)
        if name == function.__name__:
            continue
        if isinstance(value, ModuleType):
            yield f"import {value.__name__} as {name}"
        elif module not in (None, "__main__") and hasattr(value, "__qualname__"):
            yield f"from {module} import {value.__qualname__} as {name}"
        else:
            raise ConfigError(
                f"{kind}: {function.__name__} uses {name}, which no import brings; write both to a file and "
                f"give {kind}='file.py:{function.__name__}'."
            )


def _names(code: CodeType) -> Iterator[str]:
    """The global names that `code` may read, those of the functions in it too."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
