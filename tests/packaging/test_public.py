"""The public names of rlcore: what plugins may import, and what they look like."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import public_names
import pytest

from rlcore import deprecated
from rlcore.api import types

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "core/src/rlcore/api"
PLUGINS = sorted(ROOT.glob("plugins/*/*/src"))
COMMANDS = {"rlcore_cli.program"}
"""A plugin with a command may know what its context holds."""


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of what a file imports of rlcore and its command, in functions and for types too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] in ("rlcore", "rlcore_cli"):
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "rlcore")


def is_public(module: str, name: str) -> bool:
    import rlcore

    if module == "rlcore":
        return name in (*rlcore.__all__, "__version__")
    return module.startswith("rlcore.testing.") or module in COMMANDS


def test_every_public_name_is_there_and_kept() -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "scripts/public_names.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not told.returncode, told.stderr
    kept = (ROOT / "tests/packaging/public_names.txt").read_text()
    assert told.stdout == kept, "if it is meant: python scripts/public_names.py --write, and the changelog"


def test_what_the_last_release_offered_is_there_or_was_deprecated() -> None:
    released = public_names.RELEASED.read_text() if public_names.RELEASED.is_file() else ""
    gone = public_names.lost(released, public_names.KEPT.read_text())
    assert not gone, "deprecate it for one minor release first: docs/versions.md"


def test_only_what_was_deprecated_may_go() -> None:
    released = """ACTIVE = 1
class Old()  # deprecated
    field: int
class Sample(Base)
    __init__(self) -> None
    text: str
    but(self)  # deprecated
    turned(self)
"""
    now = """ACTIVE = 2
class Sample(Base)
    __init__(self, more: int = …) -> None
    text: str
    more: int = …
"""
    assert public_names.lost(released, now) == ["Sample.turned"]
    assert public_names.lost(released, now.replace("ACTIVE", "AKTIVE")) == ["ACTIVE", "Sample.turned"]
    assert public_names.lost(now, released) == ["Sample.more"]
    assert not public_names.lost(now, now)


def test_a_deprecated_name_works_and_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deprecated.DEPRECATED, "Json", "rlcore.Sample")
    said = r"^rlcore\.Json is deprecated, and the next minor release has no such name: use rlcore\.Sample\.$"
    with pytest.warns(DeprecationWarning, match=said) as told:
        from rlcore import Json
    assert Json is types.Json
    assert {one.filename for one in told} == {__file__}
    assert re.search(r"^class Json\b.*  # deprecated$", public_names.described(), re.MULTILINE)


def test_a_deprecated_name_is_still_public() -> None:
    import rlcore

    assert set(deprecated.DEPRECATED) <= set(rlcore.__all__)
    for instead in deprecated.DEPRECATED.values():
        assert instead.removeprefix("rlcore.").partition(".")[0] in rlcore.__all__


@pytest.mark.parametrize("src", PLUGINS, ids=lambda src: src.parent.name)
def test_a_bundled_plugin_imports_public_names_only(src: Path) -> None:
    files = list(src.rglob("*.py"))
    assert files
    strange = [(file.name, *found) for file in files for found in imported(file) if not is_public(*found)]
    assert not strange


def test_the_contract_imports_nothing_else_of_rlcore() -> None:
    found = {module for file in API.glob("*.py") for module, _ in imported(file)}
    assert "rlcore.api.types" in found
    assert not [module for module in found if not module.startswith("rlcore.api.")]


def test_the_names_of_a_plugin_module_load_neither_torch_nor_ray() -> None:
    code = """
import sys, rlcore
from rlcore import Component, Config, Reward, Sample, Score, hookimpl
heavy = {"torch", "ray", "transformers", "numpy", "aiohttp"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stderr
