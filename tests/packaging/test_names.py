"""Core and the command know no engine: neither its name nor its config, nor a setting of its server."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = re.compile(r"sglang|SGLang|rlcore_local|(Local|Sglang)(Config|Engine)|nnodes|ServerArgs")
WORDS = re.compile(r"local|(tp|dp|ep|pp)_size")
"""As a whole string: the name of an engine, or a field of a server."""
ALLOWED = {
    "toolkit/src/rlcore_toolkit/sglang_router.py": "the router is a library, and has sglang in its name",
    "toolkit/src/rlcore_toolkit/sglang_router_launch.py": "the same",
}
"""File → why a name may stand there."""


def named(file: Path) -> Iterator[str]:
    """Every name and string of a module, docstrings aside, that tells of an engine, with its line."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        texts: list[str] = []
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                texts = [text, "ServerArgs"] if WORDS.fullmatch(text) else [text]
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.keyword(arg=str(text)):
                texts = [text]
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                texts = [getattr(node, "module", None) or "", *(alias.name for alias in names)]
        if any(map(NAMES.search, texts)):
            yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {texts[0]!r}"


@pytest.mark.parametrize("member", ["machine", "core", "sandbox", "toolkit", "testing", "cli"])
def test_no_engine_is_known_by_name(member: str) -> None:
    files = sorted((ROOT / member / "src").rglob("*.py"))
    strange = [file for file in files if file.relative_to(ROOT).as_posix() not in ALLOWED]
    assert [one for file in strange for one in named(file)] == []


def test_what_is_allowed_is_there() -> None:
    assert [path for path in ALLOWED if not any(named(ROOT / path))] == []


def test_no_two_classes_of_core_have_one_name() -> None:
    trees = [ast.parse(file.read_text()) for file in (ROOT / "core/src").rglob("*.py")]
    classes = [
        node.name.lstrip("_") for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 300
    assert len(classes) == len(set(classes)), sorted({name for name in classes if classes.count(name) > 1})
