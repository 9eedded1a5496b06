"""Write the tables of docs/hooks.md: the hooks, and what a config says of its part, from their docstrings."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlcore.api import hookspecs, part_config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hooks.md"
USUAL = "once, when the plugins are loaded"
"""When rlcore calls a hook: the page says it above the table. A row says where it is not so."""


def written() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text()
    text = _replace(text, "hooks", ["| hook | signature | yields |", "| --- | --- | --- |", *_hooks()])
    return _replace(text, "configs", ["| base, attribute | meaning |", "| --- | --- |", *_configs()])


def _replace(text: str, name: str, rows: Iterable[str]) -> str:
    marks = rf"(?<=<!-- {name}: scripts/hooks_table\.py -->\n).*?(?=<!-- end -->)"
    table = "\n".join(["", *rows, "", ""])
    text, count = re.subn(marks, lambda _: table, text, flags=re.DOTALL)
    assert count == 1, f"{PAGE} has {count} tables of {name}"
    return text


def _hooks() -> Iterator[str]:
    for name, hook in vars(hookspecs).items():
        if name.startswith(f"{hookspecs.PROJECT}_"):
            what, called = (" ".join(text.split()) for text in (inspect.getdoc(hook) or "").split("\n\n")[:2])
            [signature] = re.findall(r"def \w+(\(.*\) -> .*):", inspect.getsource(hook))
            what, called = (text.partition(" ")[2].removesuffix(".") for text in (what, called))
            unlike = "" if called == USUAL else f". Called {called}"
            yield f"| `{name}` | `{signature.replace(chr(34), '')}` | {what}{unlike} |"


def _configs() -> Iterator[str]:
    for node in ast.parse(inspect.getsource(part_config)).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            base = ast.unparse(node.bases[0])
            yield f"| **`{node.name}`**, from `{base}` | {_line(ast.get_docstring(node))} |"
            yield from _attributes(node)


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Of class variables, properties and methods. The fields of a config are settings, not attributes."""
    for item, text in zip(node.body, [*node.body[1:], None], strict=True):  # a docstring follows its variable
        if isinstance(item, ast.FunctionDef):
            names = ", ".join(arg.arg for arg in item.args.args if arg.arg not in ("self", "cls"))
            call = "" if _is_property(item) else f"({names})"
            yield f"| `{item.name}{call}` | {_line(ast.get_docstring(item))} |"
        elif isinstance(item, ast.AnnAssign) and "ClassVar" in ast.unparse(item.annotation):
            assert isinstance(text, ast.Expr), ast.unparse(item)
            yield f"| `{ast.unparse(item.target)}` | {_line(ast.literal_eval(text.value))} |"


def _is_property(function: ast.FunctionDef) -> bool:
    return "property" in map(ast.unparse, function.decorator_list)


def _line(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(written())
