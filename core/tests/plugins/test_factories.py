"""A factory that is not where its plugin says, told before anything is imported."""

import sys
from pathlib import Path

import pytest

from rlcore.api.errors import PluginError
from rlcore.api.factory import load
from rlcore.plugins.factories import check_factory
from rlcore.plugins.registry import PluginInfo

SOURCE = """
import json as j, os.path
from math import sqrt
class Whole: ...
def make(config): ...
chosen, other = make, Whole
if True:
    try:
        from never import guarded
    except ImportError:
        guarded = None
raise SystemExit("it was run")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "found_here").mkdir()
    (tmp_path / "found_here" / "__init__.py").touch()
    (tmp_path / "found_here" / "parts.py").write_text(SOURCE)
    (tmp_path / "found_here" / "open.py").write_text("from json import *")
    (tmp_path / "found_here" / "torn.py").write_text("class Whole(:")
    for name, text in {
        "broken_here": "import nowhere",
        "faulty_here": "raise ValueError('not today')",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return "found_here.parts"


@pytest.mark.parametrize("name", ["Whole", "make", "chosen", "other", "guarded", "sqrt", "j", "Whole.build"])
def test_what_is_there(module: str, name: str) -> None:
    check_factory(f"{module}:{name}", "x")
    assert module not in sys.modules


def test_the_plugin_is_named_where_it_is_known(module: str) -> None:
    plugin = PluginInfo(name="mine", dist="rlcore-mine", version="0.3", origin="found_here")
    with pytest.raises(
        PluginError,
        match=r"^'x' of rlcore-mine 0\.3: its factory is 'nowhere:Part', and there is no module 'nowhere'\.",
    ):
        check_factory("nowhere:Part", "x", plugin)


def test_what_may_be_there(module: str) -> None:
    check_factory("found_here.open:dumps", "x")
    check_factory("math:sqrt", "x")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("found_here.parts:Hole", r"'x': its factory .*, and /.*/found_here/parts\.py has no 'Hole'\."),
        (
            "found_here.pairs:Whole",
            r"'x': its factory is 'found_here\.pairs:Whole', and there is no module 'found_here\.pairs'",
        ),
        ("lost_here.parts:Whole", r"'x': its factory is .*, and there is no module 'lost_here\.parts'"),
        (
            "broken_here.parts:Whole",
            r"'x': .*, and 'broken_here\.parts' cannot be imported: No module named 'nowhere'",
        ),
        (
            "faulty_here.parts:Whole",
            r"'x': .*, and 'faulty_here\.parts' cannot be imported: ValueError: not today",
        ),
        ("found_here.torn:Whole", r"'x': .*, and /.*/found_here/torn\.py is no Python: "),
        ("json:dumpz", r"'x': its factory is .*, and /.*/json/__init__\.py has no 'dumpz'"),
    ],
)
def test_what_is_not(module: str, factory: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        check_factory(factory, "x")


def test_a_module_that_fails_is_told_with_the_part(module: str) -> None:
    said = r"^'x' cannot be loaded from 'faulty_here:Whole': ValueError: not today\.$"
    with pytest.raises(PluginError, match=said):
        load("faulty_here:Whole", "x")
