"""`rlcore convert` and `rlcore export`: bad input is one sentence, and nothing is left behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore.testing.tiny import make_qwen3
from rlcore_cli.main import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"))


def _lost_shard(path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _truncated(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def _half_precision(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))


def _unclaimed(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForNothing"]}))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_lost_shard, "model-00002-of-00002.safetensors of its 2 weight files"),
        (_truncated, "model.safetensors: cannot be read as safetensors"),
        (_no_weights, "holds no weights"),
        (_half_precision, "found dtype 'float16', expected one of float32, bfloat16"),
        (_unclaimed, "names 'Qwen3ForNothing', expected one of"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], reason: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    harm(copy)
    assert run(["convert", str(copy), str(tmp_path / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_target_that_exists_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert run(["convert", str(model), str(tmp_path / "there")]) == 2
    assert "there: exists already" in capsys.readouterr().err
    assert not any((tmp_path / "there").iterdir())


def test_export_needs_a_run_and_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "run.toml" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    chosen = ["--algo", "grpo", "--model", "qwen3", "--run-dir", str(tmp_path / "run")]
    assert run(["train", *chosen, "--export", str(tmp_path / "there")]) == 2
    assert "--export" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
