"""The public names with their signatures, one block a name, in `tests/packaging/public_names/PACKAGE.txt`.

python scripts/public_names.py              print them
python scripts/public_names.py --write      keep them
python scripts/public_names.py --release    and keep them as those of a release: what it has may go once it
                                            was deprecated in a release (docs/versions.md)
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rlcore.deprecated import DEPRECATED

PACKAGES = ("rlcore", "rlcore_sandbox", "rlcore_toolkit")
MADE = ("model_post_init",)
"""Methods that pydantic adds."""
KEPT = Path(__file__).resolve().parents[1] / "tests/packaging/public_names"
RELEASED = KEPT.with_name("released_names")
"""Those of the last minor release; there is none before the first."""
MARK = "  # deprecated"


def described(package: str) -> str:
    """Every public name of the package, in alphabetical order."""
    module = importlib.import_module(package)
    names = sorted(name for name in module.__all__ if name != "__version__")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        blocks = [list(_lines(name, getattr(module, name))) for name in names]
    for name, block in zip(names, blocks, strict=True):
        block[0] += MARK if package == "rlcore" and name in DEPRECATED else ""
    return "\n".join(line for block in blocks for line in block) + "\n"


def broken(released: str, now: str) -> list[str]:
    """What a plugin made for `released` may miss in `now`, but for what was deprecated in it.

    Names, members as `Name.member`, and parameters, that are gone or that are new and have no default, as
    `name(parameter)`.
    """
    old, new = dict(_described_names(released)), dict(_described_names(now))
    found = []
    for name, line in old.items():
        if MARK in line + old[name.partition(".")[0]]:
            continue
        if name not in new:
            found.append(name)
            continue
        before, after = _parameters(line), _parameters(new[name])
        gone = before.keys() - after.keys()
        demanded = {one for one, has_default in after.items() if not has_default and one not in before}
        found += [f"{name}({one})" for one in sorted(gone | demanded)]
    return found


def _described_names(text: str) -> Iterator[tuple[str, str]]:
    """Each name and each member of a description, with its line."""
    owner = ""
    for line in text.splitlines():
        [name] = re.findall(r"^\s*(?:class )?(\w+)", line)
        owner = owner if line.startswith(" ") else name
        yield name if owner == name else f"{owner}.{name}", line.strip()


def _parameters(line: str) -> dict[str, bool]:
    """Parameter → whether it has a default, of a function; of anything else, nothing."""
    if not re.match(r"\w+\(", line):
        return {}
    [function] = ast.parse(f"def {line.removesuffix(MARK).replace('…', '...')}: ...").body
    assert isinstance(function, ast.FunctionDef)
    given, named = function.args.posonlyargs + function.args.args, function.args.kwonlyargs
    defaults = [None] * (len(given) - len(function.args.defaults)) + function.args.defaults
    pairs = [*zip(given, defaults, strict=True), *zip(named, function.args.kw_defaults, strict=True)]
    return {argument.arg: default is not None for argument, default in pairs}


def _lines(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base is not object]
        yield f"class {name}({', '.join(bases)})"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name} = {_plain(value)}"


def _members(kind: type[Any]) -> Iterator[str]:
    """What the class itself defines and offers: enum members, fields, methods, class variables."""
    if issubclass(kind, Enum):
        yield from (f"{member.name} = {member.value!r}" for member in kind)
        return
    if is_dataclass(kind):
        yield from (
            f"{field.name}: {_named(field.type)}{'' if _is_required(field) else ' = …'}"
            for field in fields(kind)
        )
    elif "__annotations__" in vars(kind):
        values = vars(kind) | {name: "…" for name in getattr(kind, "model_fields", ())}
        for name, annotation in vars(kind)["__annotations__"].items():
            if not name.startswith("_"):
                yield f"{name}: {_named(annotation)}{' = …' if name in values else ''}"
    for name, member in vars(kind).items():
        if name in MADE or (name.startswith("_") and (name != "__init__" or is_dataclass(kind))):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            yield f"{name}: property{_signature(member.fget)}{_mark(member.fget)}"
        elif inspect.isfunction(function) and (name != "__init__" or function.__module__ == kind.__module__):
            yield f"{name}{_signature(function)}{_mark(function)}"


def _mark(function: Any) -> str:
    """Of a member that `typing_extensions.deprecated` decorates."""
    return MARK if hasattr(function, "__deprecated__") else ""


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _signature(function: Any) -> str:
    """As it is written; the value of a default does not matter, that there is one does."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(
            annotation=_Written(_named(parameter.annotation)),
            default=parameter.default if parameter.default is inspect.Parameter.empty else _Written("…"),
        )
        if parameter.annotation is not inspect.Parameter.empty
        else parameter
        for parameter in signature.parameters.values()
    ]
    returns = signature.return_annotation
    if returns is not inspect.Parameter.empty:
        returns = _Written(_named(returns))
    return str(signature.replace(parameters=parameters, return_annotation=returns))


class _Written(str):
    """A text that `inspect` shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _named(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text)


def _plain(value: Any) -> str:
    """A constant as Python writes it; of anything else, its type."""
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _named(text) if hasattr(value, "__origin__") else type(value).__name__
    return text


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--release", action="store_true")
    given = parser.parse_args()
    folders = (KEPT, RELEASED)[: given.write + 2 * given.release]
    for package in PACKAGES:
        text = described(package)
        if not folders:
            print(f"# {package}\n{text}")
        for folder in folders:
            folder.mkdir(exist_ok=True)
            (folder / f"{package}.txt").write_text(text)


if __name__ == "__main__":
    main()
