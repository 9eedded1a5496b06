"""What `rlcore view` and `rlcore report` read in a run's folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.tracking.run_files import MetricsFile
from rlcore.tracking.trace import RUN, Trace
from rlcore_view.answers import Answers, described
from rlcore_view.metrics import MOST_POINTS
from rlcore_view.samples import binned


def test_how_far_a_run_is_and_why_it_ended(folder: Path) -> None:
    (state,) = Answers([folder]).of("runs")
    assert (state["step"], state["steps"], state["ended"], state["status"]) == (3, 3, "completed", "ended")
    assert state["reward"] == 0.75
    (folder / "trace.json").unlink()
    for file in ("run.toml", "metrics.jsonl"):
        os.utime(folder / file, (0, 0))
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    )
    command = [sys.executable, "-c", hold, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        assert Answers([folder]).of("runs")[0]["status"] == "running"
        run.communicate(b"\n")
    assert Answers([folder]).of("runs")[0]["status"] == "stopped"


def test_a_folder_of_runs_grows_and_forgets_those_that_are_gone(folder: Path, tmp_path: Path) -> None:
    answers = Answers([tmp_path], folders=True)
    assert [run["name"] for run in answers.of("runs")] == ["first"]
    shutil.copytree(folder, tmp_path / "second")
    assert [run["name"] for run in answers.of("runs")] == ["first", "second"]
    shutil.rmtree(folder)
    assert [run and run["name"] for run in answers.of("runs")] == [None, "second"]


def test_a_log_has_a_progress_bar_as_it_ended(folder: Path) -> None:
    (folder / "logs" / "bar.log").write_bytes(b"begin\r\n 0%\r 50%\r100%\nready\n")
    assert Answers([folder]).of("run/0/logs/bar.log") == {"text": "begin\n100%\nready\n", "is_cut": False}


def test_a_run_of_which_nothing_is_there_yet(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 3\n")
    answers = Answers([tmp_path])
    (state,) = answers.of("runs")
    assert (state["step"], state["ended"], state["status"]) == (None, None, "running")
    assert answers.of("run/0/series")["series"] == {}
    for path in ("trace", "samples", "logs"):
        assert answers.of(f"run/0/{path}") == []


def test_curves_have_the_steps_in_seconds_and_tokens(folder: Path) -> None:
    found = Answers([folder]).of("run/0/series")
    assert found["axes"] == {"step": [1, 2, 3], "seconds": [2, 4, 6], "tokens": [8, 16, 24]}
    assert found["series"]["rollout/reward_mean"] == [[1, 2, 3], [0.25, 0.5, 0.75]]


def test_rows_that_are_added_or_taken_back_are_seen_and_broken_ones_counted(folder: Path) -> None:
    answers = Answers([folder])
    path = folder / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "tra\n{"step": 4, "train/loss": 1}\n{"step": 5, "train')
    assert answers.of("runs")[0]["step"] == 4, "the last line is being written"
    assert answers.of("run/0/series")["broken"] == 1
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
    assert saved["token_texts"] == ["(3,)", "(4,)", "(5,)"]
    assert saved["extras"] == {"advantages": [0.5, 0, -1], "trained_log_probs": [-0.25, 0, -2]}
    assert saved["spans"] == [[0, 2], [2, 3]]
    with pytest.raises(KeyError):
        answers.of("run/0/samples/rollout-2/4")


def test_values_are_counted_in_bins() -> None:
    assert binned([[0, 1, 1, 1], []]) == {
        "middle": [0, 1],
        "shares": [[0.25, 0.75], [0, 0]],
        "mean": [0.75, None],
    }
    assert binned([[2.5]]) == {"middle": [2.5], "shares": [[1]], "mean": [2.5]}
    assert binned([])["middle"] == [0]
    lengths = binned([[0, 1000], [500]])
    assert (len(lengths["middle"]), lengths["middle"][10], lengths["shares"][1][10]) == (21, 500, 1)


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
    policy = ["policy.critic/entropy", "policy.critic/adapter_gap"]
    found = described(["rollout/reward_mean", "eval/easy/score", "rollout/failed/no_room", "own", *policy])
    assert found["rollout/reward_mean"] == [
        ["mean and standard deviation of the samples' rewards", "metrics.md", "rollout/reward_mean"]
    ]
    assert "exact match with the label" in found["eval/easy/score"][0][0]
    assert all(page == "generators.md" for _, page, _ in found["rollout/failed/no_room"])
    assert "own" not in found
    assert [found[name][0][2] for name in policy] == ["train/entropy", "engine/adapter_gap"]
