"""A student learns from another run's checkpoint, through the real command; teachers that are refused."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import LIMIT_S, SMALL, Run, rows
from inputs import make_model
from refusals import Refused

from rlcore.engines.config import LocalConfig
from rlcore.engines.launch import EngineLaunch, LocalEngine
from rlcore.engines.process import ServerProcess, free_port
from rlcore.rollout.teacher import TOKEN

TINY = ("--model", "qwen3", *SMALL)
OPD = ("train", "--algo", "opd", *TINY)


@contextmanager
def served(model: Path, folder: Path, token: str) -> Iterator[str]:
    """The URL of an engine that somebody else started."""
    engine = LocalEngine(LocalConfig.model_validate({"threads": 1}))
    launch = EngineLaunch(
        model_path=str(model),
        host="127.0.0.1",
        port=free_port(),
        token=token,
        dtype="fp32",
        context_length=64,
        seed=0,
        weights_dir=str(folder),
        log_path=str(folder / "engine.log"),
        threads=1,
    )
    command, url = engine.command(launch), f"http://{launch.host}:{launch.port}"
    process = ServerProcess(command.argv, name="local", log_path=folder / "engine.log", env=dict(command.env))
    with process:
        process.wait_ready(f"{url}/health", token=token, limit_s=LIMIT_S)
        yield url


@pytest.mark.timeout(600)
def test_a_student_of_another_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its teacher is the checkpoint, not the model that the other run started from; or an engine with it."""
    first, second, third = tmp_path / "teacher", tmp_path / "student", tmp_path / "asks"
    exported = tmp_path / "exported"
    options = ("--steps", "2", "--run-dir", str(first), "--export", str(exported))
    run("train", "--algo", "grpo", *TINY, *options)
    teacher = first / "checkpoints" / "2"
    options = ("--steps", "2", "--loss.top-k", "4", "--run-dir", str(second))
    run(*OPD, "--teacher-model", str(teacher), *options)
    for row in rows(second)[1:]:
        assert row["train/kl_teacher"] != 0
        assert row["train/kl_teacher_top"] > 0
        assert row["train/advantage_std"] == 0
        assert row["time/teacher_log_probs_s"] > 0
    saved = {path.name for path in (second / "checkpoints" / "2").iterdir() if path.is_dir()}
    assert saved == {"policy"}
    monkeypatch.setenv(TOKEN, "a-token")
    with served(exported, tmp_path, "a-token") as url:
        run(*OPD, "--teacher-url", url, "--steps", "1", "--run-dir", str(third))
    # both students sample the same in their first step, before any training
    (asked,), (resident, _) = rows(third)[1:], rows(second)[1:]
    assert asked["train/kl_teacher"] == pytest.approx(resident["train/kl_teacher"], abs=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer is not the preset's."""
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_teacher_that_does_not_fit(refused: Refused, model: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert (
        refused(*OPD, "--teacher-model", gone) == f"--teacher-model: found {gone!r}, which is no directory."
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not a Hugging Face model directory" in refused(*OPD, "--teacher-model", str(empty))
    half = tmp_path / "run" / "checkpoints" / "3"
    half.mkdir(parents=True)
    (half / "state.json").write_text("{}")
    assert str(half) in refused(*OPD, "--teacher-model", str(half))
    said = refused(*OPD, "--teacher-model", str(model))
    assert said.startswith(f"--teacher-model {model}: its vocabulary differs in ")
    assert said.endswith("expected a teacher with the same tokenizer.")
    said = refused(*OPD, "--loss.top-k", "3", "--teacher-model", str(model))
    assert "its vocab_size is" in said
    said = refused(*OPD, "--loss.top-k", "4000", "--teacher-model", str(model))
    assert said.startswith("loss 'distill': found 4000 tokens to compare in each position, expected at most ")
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    assert "its model_type is 'llama', expected 'qwen3'" in refused(*OPD, "--teacher-model", str(other))


def test_an_engine_that_is_not_there(refused: Refused) -> None:
    said = refused(*OPD, "--teacher-url", "http://127.0.0.1:9")
    assert said.startswith("--teacher-url http://127.0.0.1:9: ")
    assert "cannot be reached" in said
