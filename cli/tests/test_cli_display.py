"""The display, on a real pseudo-terminal and through a pipe."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rlcore.api.columns import Input, TrainsOn
from rlcore.tracking.run_files import METRICS_FILE
from rlcore_cli.columns import COLUMNS, cells, columns_of, compact, evaluations, legend
from rlcore_cli.curve import curve
from rlcore_cli.display import TerminalDisplay
from rlcore_cli.run_log import LOG, RunLog

ROW = {
    "step": 2,
    "rollout/reward_mean": 0.25,
    "eval/easy/score": 0.5,
    "eval/hard/score": 0.25,
    "train/ppo_kl": -1.25e-5,
    "train/entropy": 2.314,
    "train/clip_fraction": 0.0123,
    "train/grad_norm": 0.84,
    "train/kl_engine": 1.3e-6,
    "rollout/tokens_per_s": 12345.0,
    "time/generate_s": 0.11,
    "time/reward_s": 0.02,
    "time/train_s": 0.21,
    "time/publish_s": 0.004,
}
COLOR = re.compile(r"\x1b\[[0-9;]*m")
RUN = """
import json, logging, sys
from pathlib import Path
from rlcore.tracking.display import Summary
from rlcore_cli.display import TerminalDisplay
from rlcore.api.config import Config
from rlcore import RunInfo
from rlcore.tracking.run_files import RunFiles
from rlcore.tracking.trackers import Trackers

run, as_json, row = Path(sys.argv[1]), sys.argv[2] == "json", json.loads(sys.argv[3])
with TerminalDisplay(json=as_json, steps=3) as display:
    display.phase("Starting [engines]")
    display.expect(3, run)
    logging.getLogger("plugin").warning("A part is slow.")
    display.step({"step": 0, "weight_version": 0})
    trackers = Trackers({"run folder": RunFiles()}, display)
    trackers.start(RunInfo(folder=run, settings={}, plugins={}, step=1))
    trackers.metrics(row)
    trackers.metrics({"step": 3, "rollout/reward_mean": 0.75})
    trackers.end("completed")
    display.finish(
        Summary(run=str(run), steps=3, seconds=1.5, eval={"easy": 0.5}, exit_reason="completed")
    )
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    row = {"step": 1, "rollout/reward_mean": 0.125, "rollout/samples": 8, "rollout/reward_failed": 3}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def command(run_dir: Path, mode: str) -> list[str]:
    return [sys.executable, "-c", RUN, str(run_dir), mode, json.dumps(ROW)]


def environment() -> dict[str, str]:
    """The size of the terminal is that of the pty, whatever the variables say that rich prefers."""
    path = os.pathsep.join(path for path in sys.path if path)
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**known, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}


def on_terminal(run_dir: Path, columns: int) -> str:
    """What the run writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        command(run_dir, "table"), env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(ours)
        assert process.wait(60) == 0, seen.decode()
    return COLOR.sub("", seen.decode())


def test_a_terminal_shows_the_table_the_bar_and_the_curve(run_dir: Path) -> None:
    seen = on_terminal(run_dir, 80)
    titles = [column.title for column in COLUMNS]
    for text in ("✓ Starting [engines]", *titles, *filter(None, cells(ROW)), "3/3"):
        assert text in seen
    assert "…" not in seen, "every column fits into 80 characters"
    assert "gap: trainer to engine · gen rew train publ: seconds" in " ".join(seen.split())
    assert "ETA" in seen
    assert "● eval easy  ◆ eval hard" in seen
    assert "evaluation: easy 0.500" in seen
    assert not re.search(r"^ +0\s*$", seen, re.MULTILINE), "step 0 evaluated nothing"


def test_a_narrow_terminal_shows_the_first_columns_whole(run_dir: Path) -> None:
    seen = on_terminal(run_dir, 48)
    assert re.search(r"\b2 +0\.250 +0\.375 +-1\.3e-5 +2\.31 +0\.012 +0\.840\s", seen), seen
    assert "tok/s" not in seen
    assert "seconds" not in seen, "the legend is of what is shown"


def test_a_pipe_gets_plain_lines(run_dir: Path) -> None:
    checkpoint = run_dir / "checkpoints" / "3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete.json").touch()
    with (checkpoint / "weights").open("wb") as file:
        file.truncate(2_200_000_000)  # takes no room on the disk
    done = subprocess.run(
        command(run_dir, "plain"), env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0].endswith("s] Starting [engines]")
    assert lines[1].endswith("step 0/3 (before training)")
    assert "step 2/3  reward 0.250  eval 0.375  KL -1.3e-5" in lines[2]
    assert lines[3].endswith("step 3/3  reward 0.750")
    failed, checkpoint_line = "samples that failed: reward_failed 3; 8 did not", "checkpoint: step 3, 2.2 GB"
    assert lines[-3:] == [failed, checkpoint_line, f"run folder: {run_dir}"]
    assert "\x1b" not in done.stdout
    assert done.stderr == "A part is slow.\n"
    kept = (run_dir / "logs" / "run.log").read_text().splitlines()
    assert [line[:4].isdigit() for line in kept] == [True] * len(kept)
    assert [line[21:] for line in kept] == [
        "Starting [engines]",
        "warning: A part is slow.",
        *(line.partition("] ")[2] for line in lines[1:4]),
        *lines[-5:],
    ]


def test_a_log_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / LOG).symlink_to("/dev/full")
    log = RunLog()
    log.write("early")
    log.open(tmp_path)
    log.write("late")
    log.close()


def test_json_keeps_stdout_for_one_object(run_dir: Path) -> None:
    done = subprocess.run(
        command(run_dir, "json"), env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == {
        "run": str(run_dir),
        "steps": 3,
        "seconds": 1.5,
        "eval": {"easy": 0.5},
        "exit_reason": "completed",
    }
    assert "step 3/3" in done.stderr


def test_an_output_that_cannot_spell_the_curve_still_ends_well(run_dir: Path) -> None:
    ascii_only = {**environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command(run_dir, "plain"), env=ascii_only, capture_output=True, text=True, timeout=60, check=True
    )
    assert "run folder" in done.stdout


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.000"),
        (0.12345, "0.123"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (123.45, "123"),
        (12345, "12k"),
        (2.5e7, "2e7"),
        (1.3e-6, "1.3e-6"),
        (-1.2e-5, "-1.2e-5"),
        (None, ""),
        (True, ""),
    ],
)
def test_numbers_are_compact(value: float | None, text: str) -> None:
    assert compact(value) == text


def test_the_scores_of_held_out_sets_are_found_by_name() -> None:
    assert evaluations(ROW) == {"easy": 0.5, "hard": 0.25}
    assert evaluations({"eval/a/reward_mean": 1.0, "eval/b/score": None, "step": 3}) == {}


def test_the_kl_of_a_run_with_a_reference_is_that_to_the_reference() -> None:
    row = {"step": 1, "train/ppo_kl": 0.1, "train/kl_reference": 0.02}
    columns = columns_of(TrainsOn.ROLLOUTS, {Input.REFERENCE_LOG_PROBS})
    assert [text for text in cells(row, columns) if text] == ["0.020"]
    assert "KL: policy to reference" in legend(columns)
    assert columns_of(TrainsOn.ROLLOUTS, {Input.OLD_LOG_PROBS}) == COLUMNS


def test_a_curve_joins_its_points() -> None:
    lines = curve([(0, 0.0), (10, 1.0)], {}, width=30, height=4)
    assert lines[0].startswith("       1 ┤")
    assert lines[3].startswith("       0 ┤")
    assert [line[10:].strip("\u2800") != "" for line in lines[:4]] == [True] * 4
    assert all(any(row[column] != "\u2800" for row in lines[:4]) for column in range(10, 30))
    assert lines[5].split() == ["0", "10"]


def test_a_curve_marks_points_and_widens_for_large_values() -> None:
    lines = curve([(1, 0.0)], {"a": [(1, -2.0)], "b": [(5, 6.0)]}, width=30, height=5)
    assert lines[0].startswith("       6 ┤")
    assert lines[0].endswith("◆")
    assert lines[4].startswith("      -2 ┤●")
    five = curve([], {str(number): [(number, number)] for number in range(5)}, width=30, height=9)
    assert "".join(five).count("●") == 2, "a fifth set begins the marks anew"


@pytest.mark.parametrize(
    ("values", "top", "bottom"),
    [
        ((0.03, 0.08), "0.08", "0.03"),
        ((0.5, 0.5), "0.75", "0.25"),
        ((0, 0), "1", "0"),
        ((999.5, 1000), "1000", "999.5"),
    ],
)
def test_a_curve_scales_to_its_values(values: tuple[float, float], top: str, bottom: str) -> None:
    lines = curve(list(enumerate(values)), {}, width=30, height=3)
    assert (lines[0].split()[0], lines[2].split()[0]) == (top, bottom)


def test_nothing_is_drawn_of_nothing() -> None:
    assert curve([], {}, width=80) == []


@pytest.mark.parametrize("earlier", [0, 5])
def test_a_resumed_run_warns_once(earlier: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"step": step, "train/advantage_mean": 0.0, "train/advantage_std": 0.0} for step in range(1, 8)]
    (tmp_path / METRICS_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows[:earlier]))
    with TerminalDisplay(json=True, steps=7) as display:
        display.expect(7, tmp_path)
        for row in rows[earlier:]:
            display.step(row)
    assert caplog.text.count("There is nothing to learn") == (0 if earlier else 1)
