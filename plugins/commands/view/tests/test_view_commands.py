"""`rlcore view` and `rlcore report` as commands."""

import json
import os
import queue
import re
import subprocess
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from program import Program

import rlcore
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.command import open_browser
from rlcore_view.report import held

EVIL = "</script><script>alert(1)</script>"
"""The prompt of each sample in `folder`."""


def _held(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_report_is_one_file_with_all_that_it_needs(folder: Path, program: Program) -> None:
    assert program("report", str(folder)).startswith(f"{folder}/report.html (")
    html = (folder / "report.html").read_text()
    assert not re.search(r'<(script src|link rel="stylesheet")', html)
    assert EVIL not in html
    assert "hunter2" not in html
    found = _held(html)
    assert found["runs"][0]["name"] == "first"
    assert found["run/0/settings"]["settings"]["lr"] == 0.5
    assert found["run/0/samples/eval-0"]["rows"][0]["prompt"] == EVIL
    assert found["run/0/samples/rollout-2/3"]["score"] == 0.75
    assert found["run/0/trace/3"]["spans"]
    ((_, _, key),) = found["metrics"]["rollout/reward_mean"]
    assert key in [row[0] for row in found["reference"]], "a curve's name leads to its row"
    assert not [path for path in found if "logs" in path]
    assert _held(page.one_file({"run/0/series": 1})) == {"run/0/series": 1}


def test_sigterm_ends_the_page_and_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("rlcore")), "view", str(folder), "--no-browser"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as page_server:
        assert page_server.stdout is not None
        assert page_server.stdout.readline().startswith("http://")
        while not list(tmp_path.glob("rlcore-view-*")):
            time.sleep(0.01)
        page_server.terminate()
        assert page_server.wait(timeout=30) == 0
    assert not list(tmp_path.glob("rlcore-view-*"))


def test_a_run_of_a_notebook_opens_its_page(folder: Path) -> None:
    run = rlcore.Run(folder)
    with urllib.request.urlopen(run.view() + "data/runs", timeout=60) as answer:
        assert json.load(answer)[0]["name"] == "first"
    (folder / "run.toml").unlink()
    with pytest.raises(rlcore.UserError, match=r"no run\.toml in it"):
        run.view()


@pytest.mark.parametrize("command", ["view", "report"])
def test_what_is_no_run_is_refused(command: str, tmp_path: Path, program: Program) -> None:
    said = program.refused(command, str(tmp_path))
    assert said == f"{tmp_path}: no run.toml in it, so it is not a run of rlcore."
    said = program.refused(command, str(tmp_path / "a"))
    assert said == f"{tmp_path}/a: there is no such folder, expected that of a run."
    (tmp_path / "run.toml").write_text("")
    assert "is named twice" in program.refused(command, str(tmp_path), f"{tmp_path}/.")


def test_a_report_that_cannot_be_written_is_one_sentence(folder: Path, program: Program) -> None:
    (folder / "file").touch()
    said = program.refused("report", str(folder), "-o", str(folder / "file" / "a.html"))
    assert "a.html could not be written" in said


def test_the_slowest_step_of_a_long_run_is_in_the_report(folder: Path) -> None:
    lines, begin = [], 0
    for step in range(1, 451):
        for name, length in (("rollout", 5_000_000 if step == 99 else 1000), ("train", 1000)):
            about = {"cat": "run", "tid": 0, "name": name, "ts": begin, "dur": length, "args": {"step": step}}
            lines.append(json.dumps({"ph": "X", "pid": 1, **about}))
            begin += length
    (folder / "trace.json").write_text("[\n" + ",\n".join(lines))
    assert "run/0/trace/99" in held(Answers([folder]))


def test_the_browser_gets_a_private_file_and_not_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(webbrowser, "open", opened.put)
    open_browser("http://127.0.0.1:1/secret/", tmp_path)
    address = opened.get(timeout=20)
    assert "secret" not in address
    assert "url=http://127.0.0.1:1/secret/" in Path(address.removeprefix("file://")).read_text()
