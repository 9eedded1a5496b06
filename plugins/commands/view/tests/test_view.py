"""`rlcore view` and `rlcore report`: what the page is told of a run's folder, by whom it may be asked."""

import gzip
import json
import queue
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore import Json, Prompt, RunInfo, Sample, Score, Span
from rlcore.api.config import Config
from rlcore.tracking.jsonl import Jsonl
from rlcore.tracking.metrics import MetricsFile
from rlcore.tracking.trace import RUN, Trace
from rlcore_cli.main import run as rlcore
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.command import open_browser
from rlcore_view.descriptions import described
from rlcore_view.metrics import MOST_POINTS
from rlcore_view.report import held
from rlcore_view.server import PageServer

EVIL = "</script><script>alert(1)</script>"


def sample(index: int, score: float) -> Sample:
    return Sample(
        prompt=Prompt(prompt_id="p", text=EVIL, label="21"),
        prompt_ids=(1, 2),
        group_id=0,
        index=index,
        rollout_id=f"0.{index}",
        response_ids=(3, 4),
        loss_mask=(1, 0),
        log_probs=(-0.5, 0.0),
        text="2<1>",
        spans=(Span(start=0, version=2),),
        score=Score(value=score),
        extras={"advantages": (0.5, 0.0), "trained_log_probs": (-0.25, 0.0)},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run of three steps, as the run's own parts write it."""
    folder = tmp_path / "first"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "engine 0.log").write_text("ready\n")
    (folder / "run.toml").write_text('steps = 3\nlr = 0.5\n\n[tracker.post]\ntoken = "hunter2"\n')
    tracker, trace = Jsonl(Config()), Trace(folder, 2**20)
    settings: dict[str, Json] = {"save_rollouts_every": 2}
    tracker.start(RunInfo(folder=folder, settings=settings, plugins={}, step=0, decode=str))
    with trace.span(RUN, "evaluate", step=0):
        tracker.evaluation(0, {"easy": [sample(0, 0.5)]})
    for step in (1, 2, 3):
        for phase in ("rollout", "train"):
            with trace.span(RUN, phase, step=step):
                time.sleep(0.001)
        tracker.rollout(step, [sample(index, index / 4) for index in range(4)])
        row = {"step": step, "rollout/reward_mean": step / 4, "time/step_s": 2.0, "eval/easy/score": 0.5}
        tracker.metrics(step, row | {"rollout/response_tokens": 8})
        trace.flush()
    trace.end("completed")
    tracker.end("completed")
    return folder


def test_how_far_a_run_is_and_why_it_ended(folder: Path) -> None:
    (state,) = Answers([folder]).of("runs")
    assert (state["step"], state["steps"], state["ended"], state["broken"]) == (3, 3, "completed", 0)
    assert state["reward"] == 0.75


def test_a_log_has_a_progress_bar_as_it_ended(folder: Path) -> None:
    (folder / "logs" / "bar.log").write_bytes(b"begin\r\n 0%\r 50%\r100%\nready\n")
    assert Answers([folder]).of("run/0/logs/bar.log") == {"text": "begin\n100%\nready\n", "is_cut": False}


def test_a_run_of_which_nothing_is_there_yet(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 3\n")
    answers = Answers([tmp_path])
    (state,) = answers.of("runs")
    assert (state["step"], state["ended"], state["age"]) == (None, None, None)
    assert answers.of("run/0/series")["series"] == {}
    for path in ("trace", "samples", "logs"):
        assert answers.of(f"run/0/{path}") == []
    assert "run/0/series" in _held(page.one_file({"run/0/series": 1}))


def test_curves_have_the_steps_in_seconds_and_tokens(folder: Path) -> None:
    found = Answers([folder]).of("run/0/series")
    assert found["axes"] == {"step": [1, 2, 3], "seconds": [2, 4, 6], "tokens": [8, 16, 24]}
    assert found["series"]["rollout/reward_mean"] == [[1, 2, 3], [0.25, 0.5, 0.75]]


def test_rows_that_are_added_or_taken_back_are_seen_and_broken_ones_counted(folder: Path) -> None:
    answers = Answers([folder])
    path = folder / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "tra\n{"step": 4, "train/loss": 1}\n{"step": 5, "train')
    (state,) = answers.of("runs")
    assert (state["step"], state["broken"]) == (4, 1), "the last line is being written"
    with path.open("a") as file:
        file.write('/loss": 2}\n')
    assert answers.of("run/0/series")["series"]["train/loss"] == [[4, 5], [1, 2]]
    path.write_text('{"step": 1, "train/loss": 1}\n{"step": 2, "train/loss": 1}\n')
    MetricsFile(path, keep_step=1).close()  # as a resumed run does
    assert answers.of("runs")[0]["step"] == 1


def test_a_long_run_keeps_its_peaks_and_its_gaps(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    rows = [
        {"step": step, "a": None if 2000 <= step < 4000 else float(step == 777)} for step in range(10_000)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps, values = Answers([tmp_path]).of("run/0/series")["series"]["a"]
    assert len(steps) <= MOST_POINTS + 2
    assert [step for step, value in zip(steps, values, strict=True) if value == 1] == [777]
    gap = [value for step, value in zip(steps, values, strict=True) if 2000 <= step < 4000]
    assert set(gap) == {None}
    assert (steps[0], steps[-1]) == (0, 9999)


def test_what_was_dropped_is_counted_over_all_steps(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    name = "rollout/groups_dropped/zero_variance"
    rows = [{"step": step, name: step % 3, "rollout/failed": 0} for step in range(5000)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Answers([tmp_path]).of("run/0/dropped")
    bars = found[name].pop("bars")
    assert found == {name: {"total": 4999, "steps": 3333, "first": 1, "last": 4999}}
    assert len(bars[0]) == len(bars[1]) == 200
    assert sum(bars[1]) / 200 == pytest.approx(4999 / 5000)


def test_samples_by_step_and_what_is_known_of_each_token(folder: Path) -> None:
    answers = Answers([folder])
    assert [file["name"] for file in answers.of("run/0/samples")] == ["eval-0", "rollout-2"]
    listed = answers.of("run/0/samples/rollout-2")
    assert [row["score"] for row in listed["rows"]] == [0, 0.25, 0.5, 0.75]
    assert listed["rows"][3]["index"] == 3
    assert (listed["count"], listed["broken"]) == (4, 0)
    saved = answers.of("run/0/samples/rollout-2/3")["trajectory"]
    assert saved["token_texts"] == ["[3]", "[4]"]
    assert saved["extras"] == {"advantages": [0.5, 0], "trained_log_probs": [-0.25, 0]}
    assert saved["spans"] == [[0, 2]]
    with pytest.raises(KeyError):
        answers.of("run/0/samples/rollout-2/4")


def test_a_line_of_samples_that_is_none_is_left_out(folder: Path) -> None:
    path = folder / "samples" / "rollout-2.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "[]\n", '{"set":\n', *rest]))
    answers = Answers([folder])
    listed = answers.of("run/0/samples/rollout-2")
    assert (listed["count"], listed["broken"]) == (4, 2)
    assert answers.of("run/0/samples/rollout-2/1")["score"] == 0.25


def test_the_trace_step_by_step(folder: Path) -> None:
    answers = Answers([folder])
    bars = answers.of("run/0/trace")
    assert [(bar["from"], bar["to"]) for bar in bars] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert bars[0]["seconds"]["evaluate"] > 0 == bars[0]["seconds"]["train"]
    step = answers.of("run/0/trace/2")
    assert [(span["track"], span["name"]) for span in step["spans"]] == [("run", "rollout"), ("run", "train")]
    rollout, train = step["spans"]
    assert 0 == rollout["begin"] < rollout["end"] <= train["begin"] < train["end"]
    assert train["end"] == pytest.approx(step["seconds"], abs=1e-5)
    with pytest.raises(KeyError):
        answers.of("run/0/trace/9")


def test_a_trace_that_grew_over_its_limit_is_read_across_both_files(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    trace, answers = Trace(tmp_path, 20_000), Answers([tmp_path])
    for step in range(1, 300):
        for phase in ("rollout", "train"):
            with trace.span(RUN, phase, step=step):
                pass
        trace.flush()
        if step % 50 == 0:
            assert answers.of("run/0/trace")[-1]["to"] == step, "while the run goes on"
    bars = answers.of("run/0/trace")
    assert bars[-1]["to"] == 299
    assert 20 < len(bars) < 250
    for step in range(bars[0]["to"] + 1, 300):
        assert [span["about"]["step"] for span in answers.of(f"run/0/trace/{step}")["spans"]] == [step, step]


def test_metrics_are_described_by_the_closest_key() -> None:
    found = described(["rollout/reward_mean", "eval/easy/score", "rollout/failed/no_room", "own"])
    assert found["rollout/reward_mean"] == [["of the samples' rewards", "metrics.md"]]
    assert "greedy exact match" in found["eval/easy/score"][0][0]
    assert all(page == "generators.md" for _, page in found["rollout/failed/no_room"])
    assert "own" not in found


# --- the server -----------------------------------------------------------------------------------------


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    server = PageServer(page.files(), Answers([folder]).of, port=0, idle_s=2)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.url
    thread.join(20)
    assert not thread.is_alive(), "it ends when nobody asks"


def get(url: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
            packed = answer.headers["Content-Encoding"] == "gzip"
            return answer.status, gzip.decompress(body) if packed else body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_who_has_the_token_gets_the_page_and_nothing_else(url: str, folder: Path) -> None:
    status, html = get(url)
    assert status == 200
    for name in re.findall(r'(?:src|href)="([^":]+)"', html.decode()):
        assert get(url + name)[0] == 200, name
    assert json.loads(get(f"{url}data/run/0/series")[1])["axes"]["step"] == [1, 2, 3]
    assert json.loads(get(f"{url}data/run/0/logs/engine%200.log")[1])["text"] == "ready\n"
    host = url.rsplit("/", 2)[0]
    for path in ("", "/", "/wrong/", f"/{'x' * 32}/data/runs", "/é/"):
        assert get(host + urllib.parse.quote(path))[0] == 403
    for path in (
        "run/1/series",
        "run/0/nothing",
        "run/-1/series",
        "run/0/samples/%2e%2e/run",
        "run/0/logs/../run.toml",
    ):
        assert get(f"{url}data/{path}")[0] == 404
    assert b"hunter2" not in get(f"{url}data/run/0/settings")[1]
    (folder / "samples" / "eval-0.jsonl").unlink()
    (folder / "samples" / "eval-0.jsonl").mkdir()
    assert get(f"{url}data/run/0/samples/eval-0/0")[0] == 500


def test_the_page_loads_nothing_from_elsewhere() -> None:
    own = {name: content.decode() for name, content in page.files().items() if name != page.PLOTLY}
    assert not [name for name, content in own.items() if re.search(r"https?://", content)]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SEEN = {
    "curves": "rollout/reward_mean",
    "samples": "4 samples",
    "timeline": "Seconds of each step",
    "evaluations": "First, greatest and last",
    "settings": "(hidden)",
    "logs": "ready",
}


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_shows_each_tab(folder: Path, tmp_path: Path) -> None:
    """The page's scripts run under its own policy, and none of them fails."""
    server = PageServer(page.files(), Answers([folder]).of, port=0, idle_s=4)
    thread = threading.Thread(target=server.run)
    thread.start()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    for tab, text in SEEN.items():
        command = [str(BROWSER), *options, f"{server.url}#{tab}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert text in done.stdout, tab
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not [line for line in said if "Failed to fetch" not in line], tab  # it leaves in mid-request
    thread.join(20)


# chooses other samples, and at once another tab
HURRIED = b"""
const look = setInterval(() => {
  const earlier = document.querySelector("[aria-label=Earlier]");
  if (!earlier) return;
  clearInterval(look);
  earlier.click();
  location.hash = "settings";
}, 20);
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_late_answer_does_not_replace_the_tab_that_was_chosen_meanwhile(
    folder: Path, tmp_path: Path
) -> None:
    answers = Answers([folder])

    def late(path: str) -> Json:
        if path == "run/0/samples/eval-0":
            time.sleep(0.5)
        return answers.of(path)

    files = page.files()
    files["hurried.js"] = HURRIED
    files["index.html"] = files["index.html"].replace(
        b"</body>", b'<script src="hurried.js"></script></body>'
    )
    server = PageServer(files, late, port=0, idle_s=4)
    thread = threading.Thread(target=server.run)
    thread.start()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", f"{server.url}#samples"]
    done = subprocess.run([str(BROWSER), *options], capture_output=True, text=True, timeout=60, check=False)
    assert "(hidden)" in done.stdout
    assert "Find in samples" not in done.stdout
    thread.join(20)


# --- the commands ---------------------------------------------------------------------------------------


def _held(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_report_is_one_file_with_all_that_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rlcore(["report", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}/report.html (")
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
    assert "rollout/reward_mean" in found["metrics"]
    assert not [path for path in found if "logs" in path]


@pytest.mark.parametrize("command", ["view", "report"])
def test_what_is_no_run_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlcore([command, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: no run.toml in it, so it is not a run of rlcore.\n"
    (tmp_path / "run.toml").write_text("")
    assert rlcore([command, str(tmp_path), f"{tmp_path}/."]) == 2
    assert "is named twice" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    assert rlcore(["report", str(folder), "-o", str(folder / "file" / "a.html")]) == 2
    assert "a.html could not be written" in capsys.readouterr().err


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
