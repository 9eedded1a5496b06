"""Lists the settings of prime-rl for the test of docs/migrating_from_prime_rl.md: no index has its packages.

python scripts/prime_rl_settings.py CHECKOUT    writes tests/docs/prime_rl_settings.txt from its classes
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "tests" / "docs" / "prime_rl_settings.txt"
CONFIGS = "packages/prime-rl-configs/src/prime_rl/configs"
ROOT = ("rl", "RLConfig")
Name = tuple[str, str]
"""A module and what it calls a class."""


class Configs:
    """The config classes in the modules of a folder, read without importing them."""

    def __init__(self, folder: Path) -> None:
        self._classes: dict[Name, ast.ClassDef] = {}
        self._other: dict[Name, ast.expr | Name] = {}
        for file in sorted(folder.glob("*.py")):
            for node in ast.parse(file.read_text()).body:
                self._add(file.stem, node)

    def _add(self, module: str, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef(name=name):
                self._classes[module, name] = node
            case ast.ImportFrom(module=str(source), names=names):
                for one in names:
                    self._other[module, one.asname or one.name] = (source.rpartition(".")[2], one.name)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._other[module, name] = value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._other[module, name] = value

    def lines(self, name: Name = ROOT, path: str = "", above: tuple[Name, ...] = ()) -> Iterator[str]:
        """`path.field`, with ` = VALUE` where a literal is its default, of each field in and below `name`."""
        for module, field, annotation, default in self._fields(name):
            yield f"{path}{field}{default}"
            for inner in self._named(module, annotation):
                if inner not in above:
                    yield from self.lines(inner, f"{path}{field}.", (*above, inner))

    def _fields(self, name: Name) -> Iterator[tuple[str, str, ast.expr, str]]:
        node = self._classes[name]
        for base in node.bases:
            for above in self._named(name[0], base):
                yield from self._fields(above)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield name[0], line.target.id, line.annotation, _default(line.value)

    def _named(self, module: str, annotation: ast.AST) -> Iterator[Name]:
        """The classes that `annotation` names, in `module` or where it has them from."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name):
                yield from self._found((module, node.id))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield from self._found((module, node.value))

    def _found(self, name: Name) -> Iterator[Name]:
        if name in self._classes:
            yield name
        elif isinstance(other := self._other.get(name), ast.expr):
            yield from self._named(name[0], other)
        elif other is not None:
            yield from self._found(other)


def _default(value: ast.expr | None) -> str:
    """The literal in `= 8`, `= Field(8, ge=1)` or `= "grpo"`."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    if isinstance(value, ast.Constant) and value.value is not ... and value.value is not None:
        return f" = {value.value!r}"
    return ""


if __name__ == "__main__":
    (checkout,) = sys.argv[1:]
    found = sorted(set(Configs(Path(checkout) / CONFIGS).lines()))
    LIST.write_text("".join(f"{line}\n" for line in found))
    print(f"{LIST}: {len(found)} lines")
