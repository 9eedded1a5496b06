"""What docs/versions.md calls public, one block a name, in `tests/packaging/public_names/LIST.txt`.

The names of the packages with their signatures, the hooks, the suites of rlcore_testing, the settings, and
the keys of metrics.jsonl.

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
from functools import cache
from pathlib import Path
from typing import Any

import metric_texts

from rlcore.api import hookspecs
from rlcore.api.config import Config, fields_of
from rlcore.api.part import load
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.deprecated import DEPRECATED
from rlcore.plugins import loader
from rlcore.plugins.registry import Registry
from rlcore_testing.conformance import Conformance
from rlcore_testing.suites import SUITES

PACKAGES = ("rlcore", "rlcore_machine", "rlcore_sandbox", "rlcore_toolkit")
LISTS = (*PACKAGES, "hooks", "rlcore_testing", "settings", "metrics")
MADE = ("model_post_init",)
"""Methods that pydantic adds."""
KEPT = Path(__file__).resolve().parents[1] / "tests/packaging/public_names"
RELEASED = KEPT.with_name("released_names")
"""Those of the last minor release; there is none before the first."""
MARK = "  # deprecated"


def described(what: str) -> str:
    """One of `LISTS`."""
    lists = {"hooks": _hooks, "rlcore_testing": _suites, "settings": _settings, "metrics": _metrics}
    lines = lists[what]() if what in lists else _names(what)
    return "\n".join(lines) + "\n"


def _names(package: str) -> Iterator[str]:
    """Every public name of the package, in alphabetical order."""
    module = importlib.import_module(package)
    names = sorted(name for name in module.__all__ if name != "__version__")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        blocks = [list(_lines(name, getattr(module, name))) for name in names]
    for name, (first, *others) in zip(names, blocks, strict=True):
        yield first + (MARK if package == "rlcore" and name in DEPRECATED else "")
        yield from others


def _hooks() -> Iterator[str]:
    for name, hook in sorted(vars(hookspecs).items()):
        if name.startswith(f"{hookspecs.PROJECT}_"):
            yield from _lines(name, hook)


def _suites() -> Iterator[str]:
    """What a subclass of a suite may set, override or call, whichever base defines it."""
    configs: list[Any] = [entry.config for entry in _bundled().entries(Kind.TRAINER)]
    bridges = [config.bridge_suite for config in configs if config.bridge_suite]
    for name in sorted([*SUITES.values(), *bridges]):
        suite = load(name, "suite")
        bases = [base for base in reversed(suite.__mro__) if issubclass(base, Conformance)]
        members = {
            line.partition("(")[0].partition(":")[0]: line for base in bases for line in _members(base)
        }
        yield f"class {name.replace(':', '.')}(Conformance)"
        yield from (f"    {line}" for one, line in members.items() if not one.startswith("test_"))


def _settings() -> Iterator[str]:
    """Those of a run, and of each bundled part as `kind.part.setting`."""
    configs: dict[str, type[Config]] = {"run": RunConfig}
    for kind in Kind:
        for entry in _bundled().entries(kind):
            config = getattr(entry.record, "config", None)
            if config is not None:
                configs[f"{kind}.{entry.record.name}"] = config
    for owner, config in configs.items():
        for name, info in fields_of(config).items():
            yield f"{owner}.{name}{MARK if info.deprecated else ''}"


def _metrics() -> Iterator[str]:
    """Those that the documentation explains; `*` stands for what differs by run, as the name of a set."""
    texts = {re.sub("<[^>]+>", "*", key): text for key, text, _ in metric_texts.texts()}
    yield from (f"{key}{MARK if texts[key].startswith('deprecated') else ''}" for key in sorted(texts))


@cache
def _bundled() -> Registry:
    return loader.load(loader.Switches()).registry


def broken(released: str, now: str) -> list[str]:
    """What a plugin made for `released` may miss in `now`, but for what was deprecated in it.

    Names, members as `Name.member`, and parameters, that are gone or that are new and have no default, as
    `name(parameter)`.
    """
    old, new = _described_names(released), _described_names(now)
    found = []
    for name, (line, is_deprecated) in old.items():
        if is_deprecated:
            continue
        if name not in new:
            found.append(name)
            continue
        before, after = _parameters(line), _parameters(new[name][0])
        gone = before.keys() - after.keys()
        demanded = {one for one, has_default in after.items() if not has_default and one not in before}
        found += [f"{name}({one})" for one in sorted(gone | demanded)]
    return found


def _described_names(text: str) -> dict[str, tuple[str, bool]]:
    """Each name and each member of a description: its line, and whether it or its class is deprecated."""
    found: dict[str, tuple[str, bool]] = {}
    owner, is_deprecated = "", False
    for line in text.splitlines():
        [name] = re.findall(r"^\s*(?:class )?([\w.+/*@-]+)", line)
        marked = line.endswith(MARK)
        if line.startswith(" "):
            found[f"{owner}.{name}"] = line.strip(), marked or is_deprecated
        else:
            owner, is_deprecated = name, marked
            found[name] = line, marked
    return found


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
        yield f"class {name}({', '.join(bases)}){_mark(value)}"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isroutine(value):
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
    """Of a class or member that `typing_extensions.deprecated` decorates itself."""
    return MARK if "__deprecated__" in getattr(function, "__dict__", ()) else ""


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _signature(function: Any) -> str:
    """As it is written; the value of a default does not matter, that there is one does."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        name = getattr(function, "__qualname__", repr(function))
        raise SystemExit(
            f"{name}: its signature cannot be read, so no change of it would be noticed; wrap it in a `def`."
        ) from None
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
    for what in LISTS:
        text = described(what)
        if not folders:
            print(f"# {what}\n{text}")
        for folder in folders:
            folder.mkdir(exist_ok=True)
            (folder / f"{what}.txt").write_text(text)


if __name__ == "__main__":
    main()
