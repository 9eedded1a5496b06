"""What a user's code defines, by its name."""

from pathlib import Path

import pytest
from refusals import Case, cases

from rlcore import ConfigError
from rlcore_toolkit import load_object

FLAG = "--generator.function"


def test_of_a_module_or_of_a_file_that_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be called as a module of the standard library is, and is no other by another path to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Mine:\n    number: int = 0\n"
        "made = Mine()\n"
    )
    made = load_object("json.py:made", FLAG)
    assert load_object(f"{tmp_path}/json.py:made", FLAG) is made
    assert load_object("json.py:Mine", FLAG) is type(made)
    assert load_object("json:dumps", FLAG)([1]) == "[1]"


@cases("objects")
def test_one_sentence_whatever_is_wrong(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    for _ in range(2):  # the second time as the first
        with case.refused(ConfigError, tmp_path):
            load_object(case.given, FLAG)
