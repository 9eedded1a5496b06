"""A command that is refused: in this process, for what is found before anything is started."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlcore_cli.main import run

USER_ERROR = 2
Refused = Callable[..., str]


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
