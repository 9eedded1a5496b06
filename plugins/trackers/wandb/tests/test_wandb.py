"""The tracker `wandb`, offline: what its file holds, and what never gets there."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore import ConfigError, MissingPackageError
from rlcore_wandb.config import WandbConfig
from rlcore_wandb.tracker import Wandb

RUN = """
import sys
from pathlib import Path
import psutil
from rlcore import RunInfo
from rlcore_testing.display import SilentDisplay
from rlcore.tracking.trackers import Trackers
from rlcore_testing.samples import SCORED as sample
from rlcore_wandb.config import WandbConfig
from rlcore_wandb.tracker import Wandb

folder, step = Path(sys.argv[1]), int(sys.argv[2])
config = WandbConfig(mode="offline", project="copying", tags=("first",), samples=1)
trackers = Trackers({"wandb": Wandb(config)}, SilentDisplay())
trackers.start(RunInfo(folder=folder, settings={"lr": 0.5}, plugins={"grpo": "0.1.0"}, step=step))
trackers.metrics({"step": step + 1, "train/loss": 0.25, "note": "x"})
trackers.evaluation(step + 1, {"easy": [sample, sample], "empty": []})
trackers.rollout(step + 1, [sample.but(extras={"advantages": ()})])
trackers.end("sigterm")
assert not psutil.Process().children(), "wandb's service is left"
"""
BLOCK, HEAD = 32768, 7


def track(folder: Path, step: int = 0) -> None:
    """A run in a process of its own, as wandb has one service for a process; with an argument to keep."""
    command = [sys.executable, "-c", RUN, str(folder), str(step), "--token=hunter2"]
    env = {**os.environ, "WANDB_SILENT": "true", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "The tracker" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, which tests read."""
    folder = tmp_path_factory.mktemp("run")
    track(folder)
    return folder


def records(file: Path) -> list[Any]:
    """The records of a .wandb file: LevelDB's log, blocks of 32 KiB, behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, found, parts = file.read_bytes(), HEAD, [], b""
    while place + HEAD <= len(data):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


def logged(found: list[Any]) -> list[dict[str, Any]]:
    """The rows of the history, without wandb's own keys."""
    rows = []
    for record in found:
        if record.HasField("history"):
            named = {("/".join(item.nested_key) or item.key): item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in named.items() if not key.startswith("_")})
    return rows


@pytest.mark.full
def test_what_an_offline_run_holds(tracked: Path) -> None:
    (file,) = tracked.glob("wandb/offline-run-*/run-*.wandb")
    found = records(file)
    first, second, third = logged(found)
    assert sum(third["distribution/reward/values"]) == 1
    assert third["samples/rollout/nrows"] == 1
    assert first == {"step": 1, "train/loss": 0.25}
    assert second["step"] == 1
    assert second["samples/easy/nrows"] == 1
    (table,) = tracked.glob("wandb/offline-run-*/files/media/table/samples/easy*.json")
    assert json.loads(table.read_text())["data"] == [["p", "12", "2<1>", "21", 0.5]]
    pictures = [*tracked.glob("wandb/offline-run-*/files/media/images/pictures/*.png")]
    assert sorted(path.name.partition("_")[0] for path in pictures) == ["easy", "rollout"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    (run,) = [record.run for record in found if record.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["lr"], config["plugins"]) == (0.5, {"grpo": "0.1.0"})
    assert (run.project, run.display_name, list(run.tags)) == ("copying", tracked.name, ["first"])
    said = {item.key: item.value_json for r in found if r.HasField("summary") for item in r.summary.update}
    assert said["exit_reason"] == '"sigterm"'


def test_the_command_line_is_in_no_file(tracked: Path) -> None:
    files = [path for path in tracked.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


@pytest.mark.full
def test_a_resumed_run_has_the_same_id(tracked: Path, tmp_path: Path) -> None:
    shutil.copytree(tracked, tmp_path, symlinks=True, dirs_exist_ok=True)
    track(tmp_path, step=5)
    names = {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert names == {f"run-{(tmp_path / 'wandb' / 'id').read_text()}.wandb"}


def test_without_an_account_there_is_one_sentence(tmp_path: Path) -> None:
    """In a process without a home, whose .netrc has no key."""
    code = "from rlcore_wandb.tracker import *; Wandb(WandbConfig())"
    env = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert f"{ConfigError.__name__}: --tracker wandb: found no account; run wandb login" in done.stderr


def test_without_the_package_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"wandb": True}.get)
    with pytest.raises(
        MissingPackageError, match=r": found no matplotlib; pip install 'rlcore-wandb\[client\]'"
    ):
        Wandb(WandbConfig(mode="offline"))
