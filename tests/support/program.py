"""`rlcore ARGUMENTS` in this process, and what it prints."""

import json
from typing import Any

import pytest
from refusals import USER_ERROR, sentence

from rlcore_cli.main import run


class Program:
    """`out` and `err`: what the last call printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What `rlcore ARGUMENTS` prints to stdout; it ends with `code`."""
        self._capsys.readouterr()
        found = run([*arguments])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.err
        return self.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The same, read as JSON."""
        return json.loads(self(*arguments, code=code))

    def refused(self, *arguments: str) -> str:
        """The sentence that refuses `rlcore ARGUMENTS`, alone on stderr; `train` prints nothing else."""
        out = self(*arguments, code=USER_ERROR)
        assert not out or "train" not in arguments, out
        [_] = self.err.splitlines()
        return sentence(self.err)
