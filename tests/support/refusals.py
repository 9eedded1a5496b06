"""Refusals: what is refused, by which error or exit code. `tests/refusals.txt` has the sentences.

`REFUSALS=write pytest …` writes the sentences of the tests that it runs into that file.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import UserError
from rlcore_cli.main import run

USER_ERROR = 2
GOLDEN = Path(__file__).parents[1] / "refusals.txt"
Refused = Callable[..., str]
Sections = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Case:
    """A case of `GOLDEN`: what is given, and the sentence that refuses it."""

    section: str
    line: str
    sentence: str

    @property
    def given(self) -> Any:
        return json.loads(self.line)

    @contextmanager
    def refused(self, error: type[Exception] = UserError, folder: Path | None = None) -> Iterator[None]:
        """The block raises `error`, with the sentence of the case."""
        with pytest.raises(error) as caught:
            yield
        self.check(str(caught.value), folder)

    def check(self, sentence: str, folder: Path | None = None) -> None:
        """It names a flag, a file or a given word, and is the sentence of the case (`{folder}`: the path).

        Where the words of a library follow, the case ends with `…`.
        """
        sentence = sentence.replace(str(folder or Path.cwd()), "{folder}")
        words = {word.replace("_", "-") for word in re.findall(r"[\w-]+", self.line)}
        named = words & set(re.findall(r"[\w-]+", sentence.replace("_", "-")))
        assert named or re.search(r"--[a-z]|{folder}", sentence), sentence
        if self.sentence.endswith("…") and sentence.startswith(self.sentence[:-1]):
            return
        if os.environ.get("REFUSALS") == "write":
            _write(self, sentence)
        else:
            assert sentence == self.sentence


def cases(section: str) -> pytest.MarkDecorator:
    """The test gets each `case` of the section."""
    known = [Case(section, line, sentence) for line, sentence in _read()[section].items()]
    return pytest.mark.parametrize("case", known, ids=[case.line for case in known])


@cache
def _read() -> Sections:
    found: Sections = {}
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("== "):
            section = found.setdefault(line[3:], {})
        elif line.startswith("  "):
            section[next(reversed(section))] = line[2:]
        elif line:
            section[line] = ""
    return found


def _write(case: Case, sentence: str) -> None:
    with GOLDEN.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _read.cache_clear()
        found = _read()
        found[case.section][case.line] = sentence
        blocks = (
            "\n".join([f"== {name}", *(f"{line}\n  {said}" for line, said in known.items())])
            for name, known in sorted(found.items())
        )
        file.truncate(0)
        file.write("\n\n".join(blocks) + "\n")


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which `rlcore ARGUMENTS` is refused. Nothing is left where it was called."""
    with unchanged(Path.cwd()):
        code = run(list(arguments))
    found = capsys.readouterr()
    assert code == USER_ERROR, found.out + found.err
    return sentence(found.err)


def sentence(err: str) -> str:
    """The one line `error: …` that stderr ends with."""
    assert "Traceback" not in err
    *before, last = err.splitlines()
    assert last.startswith("error: "), err
    assert not any(line.startswith("error: ") for line in before), err
    assert last.endswith((".", "?", ")")), err
    return last.removeprefix("error: ")


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """No file or folder appears or vanishes in `folder`."""
    before = sorted(folder.rglob("*"))
    yield
    after = sorted(folder.rglob("*"))
    assert after == before, after
