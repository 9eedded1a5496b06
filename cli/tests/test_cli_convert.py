"""`rlcore convert` and `rlcore export`: bad input is one sentence, and nothing is left behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from program import Program

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
    model: Path, tmp_path: Path, program: Program, harm: Callable[[Path], None], reason: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    harm(copy)
    line = program.refused("convert", str(copy), str(tmp_path / "out"))
    assert reason in line
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_target_that_exists_is_refused(model: Path, tmp_path: Path, program: Program) -> None:
    (tmp_path / "there").mkdir()
    assert "there: exists already" in program.refused("convert", str(model), str(tmp_path / "there"))
    assert not any((tmp_path / "there").iterdir())


def test_export_needs_a_run_and_a_new_folder(tmp_path: Path, program: Program) -> None:
    assert "run.toml" in program.refused("export", str(tmp_path), str(tmp_path / "out"))
    (tmp_path / "there").mkdir()
    chosen = ["--algo", "grpo", "--model", "qwen3", "--run-dir", str(tmp_path / "run")]
    assert "--export" in program.refused("train", *chosen, "--export", str(tmp_path / "there"))
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
    model: Path, tmp_path: Path, program: Program
) -> None:
    copy, middle, out, file = (tmp_path / name for name in ("copy", "middle", "out", "mine.py"))
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["MineForCausalLM"]}))
    file.write_text(BRIDGE)
    program("--plugin", str(file), "convert", str(copy), str(middle), "--ranks", "2")
    assert {path.name for path in (middle / "weights").glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}

    program("--plugin", str(file), "convert", str(middle), str(out))
    torch.testing.assert_close(tensors_of(out), tensors_of(copy), rtol=0, atol=0)


def test_what_is_not_there_is_refused(tmp_path: Path, program: Program) -> None:
    gone = tmp_path / "gone"
    sentence = program.refused("convert", str(gone), str(tmp_path / "out"))
    assert sentence.startswith(f"{gone}: expected RUN/checkpoints/N of a run")
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
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PLUGINS", "import,qwen")
    plugin, model = tmp_path / "trainers.py", tmp_path / "model"
    plugin.write_text(BARE)
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    said = program.refused("--plugin", str(plugin), "convert", str(model), str(tmp_path / "out"))
    assert "the trainer 'bare' has no weights in a form of its own" in said
