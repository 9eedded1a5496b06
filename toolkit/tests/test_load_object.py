"""What a user's code defines, by its name."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", "found 'nowhere', expected module:NAME or path/to/file.py:NAME"),
        (":name", "expected module:NAME"),
        ("no_such_module:f", "no_such_module:f: cannot be loaded, ModuleNotFoundError"),
        ("gone.py:f", "cannot be loaded, FileNotFoundError"),
        ("json:nobody", "cannot be loaded, AttributeError"),
        ("leaves.py:f", "cannot be loaded, SystemExit: 3"),
    ],
)
def test_one_sentence_whatever_is_wrong(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    for _ in range(2):  # the second time as the first
        with pytest.raises(ConfigError, match=f"^{FLAG}.*{reason}"):
            load_object(name, FLAG)
