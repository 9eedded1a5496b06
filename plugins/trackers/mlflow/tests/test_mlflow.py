"""The tracker `mlflow`, offline: what MLflow finds in its folder."""

import importlib.util
import json
from pathlib import Path

import pytest

from rlcore import MissingPackageError, RunInfo
from rlcore.tracking.trackers import Trackers
from rlcore_mlflow.config import MlflowConfig
from rlcore_mlflow.tracker import Mlflow
from rlcore_testing.display import SilentDisplay
from rlcore_testing.samples import SCORED as SAMPLE


def track(folder: Path, step: int, reason: str = "completed") -> None:
    config = MlflowConfig(experiment="copying", samples=1)
    trackers = Trackers({"mlflow": Mlflow(config)}, SilentDisplay())
    settings = {"lr": 0.5, **{f"setting_{number}": number for number in range(150)}}
    trackers.start(RunInfo(folder=folder, settings=settings, plugins={"grpo": "0.1.0"}, step=step))
    trackers.metrics({"step": step + 1, "train/loss": 0.25, "eval/easy/avg@8": 0.75, "note": "x"})
    trackers.evaluation(step + 1, {"easy": [SAMPLE, SAMPLE]})
    trackers.rollout(step + 1, [SAMPLE])
    trackers.rollout(step + 2, [SAMPLE.but(extras={"advantages": ()})])
    trackers.end(reason)


def test_what_mlflow_finds_of_a_run_and_of_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    track(tmp_path, 0, "sigterm")
    track(tmp_path, 5)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("copying")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == tmp_path.name
    assert (run.info.status, run.data.tags["exit_reason"]) == ("FINISHED", "completed")
    assert (run.data.params["lr"], run.data.params["setting_149"]) == ("0.5", "149")
    assert run.data.tags["plugin.grpo"] == "0.1.0"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in losses] == [(1, 0.25), (6, 0.25)]
    assert run.data.metrics["eval/easy/avg_8"] == 0.75
    found = {path.name: path for path in tmp_path.glob("mlflow/**/samples/*.json")}
    assert set(found) == {"easy-1.json", "rollout-2.json", "easy-6.json", "rollout-7.json"}
    pictures = {path.name: path for path in tmp_path.glob("mlflow/**/distribution/*.png")}
    assert set(pictures) == {"easy-1.png", "rollout-2.png", "easy-6.png", "rollout-7.png"}
    assert pictures["easy-1.png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(found["easy-1.json"].read_text())["data"] == [["p", "12", "2<1>", "21", 0.5]]


def test_without_the_package_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"mlflow": True}.get)
    with pytest.raises(MissingPackageError, match=r"no matplotlib; pip install 'rlcore-mlflow\[client\]'"):
        Mlflow(MlflowConfig())
