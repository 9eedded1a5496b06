"""`rlcore convert` and `rlcore export`: bad input is one sentence, and nothing is left behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore_cli.main import run
from rlcore_testing.checkpoints import tensors_of
from rlcore_testing.tiny import make_qwen3


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


def _misshapen(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))


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
        (_misshapen, "weight 'model.layers.0.mlp.gate_proj.weight' is (128, 64), but its config.json calls"),
        (_unclaimed, "expected --trainer fsdp"),
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


BRIDGE = '''
from rlcore.api.config import Config
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import ModelFamily
from rlcore_qwen.bridge import QwenBridge

class Settings(Config):
    """Pickled by a name that only this file has."""

class MineBridge(QwenBridge):
    def __init__(self, config: Settings, **known: object) -> None:
        assert isinstance(config, Settings)
        super().__init__(config, **known)

@hookimpl
def rlcore_models():
    yield ModelFamily(
        name="mine", factory=f"{__name__}:MineBridge", config=Settings, summary="x",
        trainer="megatron",
        architectures=("MineForCausalLM",),
    )
'''


@pytest.mark.full
@pytest.mark.timeout(900)  # of two more processes that import everything
@pytest.mark.filterwarnings("ignore")  # megatron warns of itself, and it runs in this process here
def test_processes_that_share_the_work_have_the_plugin_files(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, middle, out, file = (tmp_path / name for name in ("copy", "middle", "out", "mine.py"))
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["MineForCausalLM"]}))
    file.write_text(BRIDGE)
    code = run(["--plugin", str(file), "convert", str(copy), str(middle), "--ranks", "2"])
    assert code == 0, capsys.readouterr().err
    assert {path.name for path in (middle / "weights").glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}

    assert run(["--plugin", str(file), "convert", str(middle), str(out)]) == 0
    before, after = tensors_of(copy), tensors_of(out)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_what_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    assert run(["convert", str(gone), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {gone}: expected RUN/checkpoints/N of a run")
    assert list(tmp_path.iterdir()) == []


BARE = """
from rlcore import Component, TrainerConfig, hookimpl

class Bare(TrainerConfig):
    needs_bridge = False

@hookimpl
def rlcore_trainers():
    yield Component(name="bare", factory=f"{__name__}:Bare", summary="x", config=Bare, default=True)
"""


def test_a_trainer_without_a_form_of_its_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "import,qwen")
    plugin, model = tmp_path / "trainers.py", tmp_path / "model"
    plugin.write_text(BARE)
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert run(["--plugin", str(plugin), "convert", str(model), str(tmp_path / "out")]) == 2
    assert "the trainer 'bare' has no weights in a form of its own" in capsys.readouterr().err
