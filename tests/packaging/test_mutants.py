"""`scripts/mutants.py`: its table fits the code, and a mutant is killed, survives or is refused."""

import sys
from pathlib import Path

import mutants
import pytest

from rlcore_testing.programs import ran

ROOT = Path(__file__).resolve().parents[2]
TABLE = mutants.mutants()


def test_names_are_unique_and_there_are_many() -> None:
    assert len({mutant.name for mutant in TABLE}) == len(TABLE) >= 25


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_tests_exist(mutant: mutants.Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.path, "exec")
    assert mutant.tests
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


FILE = "plugins/algorithms/filters/src/rlcore_filters/filters.py"
SWAPS = """
[[file]]
path = "plugins/algorithms/filters/src/rlcore_filters/filters.py"
tests = ["plugins/algorithms/filters/tests/test_group_filters.py"]
swaps = [
  {{ name = "noticed", old = "if all(truncated):", new = "if any(truncated):" }},
  {{ name = "other", old = "if all(truncated):", new = "{new}" }},
]
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        ("if all(list(truncated)):", 1, "1 of 2 mutants were killed.\nsurvived: other"),
        ("if all(truncated", 2, "mutants: other: its tests cannot be run"),
    ],
)
def test_what_becomes_of_a_mutant(new: str, code: int, words: str, tmp_path: Path) -> None:
    """The script itself, on a table of its own; the tree that it copies stays as it is."""
    table = tmp_path / "table.toml"
    table.write_text(SWAPS.format(new=new))
    before = (ROOT / FILE).read_text()
    done = ran(sys.executable, str(ROOT / "scripts" / "mutants.py"), "--table", str(table), limit_s=240)
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
    assert (ROOT / FILE).read_text() == before


def test_a_text_that_is_not_there_is_told() -> None:
    mutant = mutants.Mutant(name="gone", path=FILE, old="was here", new="is", tests=())
    with pytest.raises(mutants.BrokenMutantError, match="'was here' 0 times, expected once"):
        mutant.applied((ROOT / FILE).read_text())
