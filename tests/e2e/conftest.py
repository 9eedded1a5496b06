"""Fixtures that start the real command."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import LIMIT_S, Command, Run, Start
from kept_gap import who_is_wrong
from layouts import Layouts
from refusals import Refused, refuse

HERE = Path(__file__).parent
STARTS = {"start", "run", "layouts"}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start the command are of the full tier, but for those marked `daily`."""
    for item in items:
        starts = item.path.is_relative_to(HERE) and STARTS & set(getattr(item, "fixturenames", ()))
        if starts and not item.get_closest_marker("daily"):
            item.add_marker("full")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `rlcore ARGUMENTS` in a folder of its own; ended with the test."""
    commands: list[Command] = []

    def begin(*arguments: str, cwd: Path = tmp_path, **known: Any) -> Command:
        folder = cwd / f"command-{len(commands)}"
        folder.mkdir()
        command = Command(*arguments, cwd=folder, **known)
        commands.append(command)
        return command

    yield begin
    for command in commands:
        command.stop()


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Run:
    """Run `rlcore ARGUMENTS` to its end and expect exit code `code`."""

    def finish(*arguments: str, code: int = 0, limit: float = LIMIT_S, **known: Any) -> Command:
        command = start(*arguments, **known)
        found = command.wait(limit)
        said = f"{command.stdout[-2000:]}\n{command.stderr[-4000:]}"
        assert found == code, f"exit code {found}\n{said}\n{who_is_wrong(tmp_path)}"
        return command

    return finish


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    """The same run under several layouts, each made when it is first asked for."""
    return Layouts(tmp_path_factory.mktemp("layouts"))


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """`refused(*arguments)`: the sentence; called in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return partial(refuse, capsys)
