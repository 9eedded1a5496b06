"""A student learns from another run's checkpoint, through the real command; teachers that are refused."""

import json
import shutil
from pathlib import Path

import psutil
import pytest
import torch
from command import SMALL, Run, gone, rows
from inputs import make_model
from refusals import Refused
from safetensors.torch import load_file, save_file

from rlcore.rollout.scoring import TOKEN as TEACHER_TOKEN
from rlcore_local.testing import LOCAL
from rlcore_testing.engine_server import TOKEN, launch_of, serving

TINY = ("--model", "qwen3", *SMALL)
OPD = ("train", "--algo", "opd", *TINY)


def sevens(model: Path, to: Path) -> Path:
    """`model`, so that it says 7 and nothing else: all positions hold one vector, which only 7 likes."""
    shutil.copytree(model, to)
    vocabulary = json.loads((to / "tokenizer.json").read_text())["model"]["vocab"]
    file = to / "model.safetensors"
    weights = {name: torch.zeros_like(one) for name, one in load_file(file).items()}
    for name, one in weights.items():
        if "norm" in name or name == "model.embed_tokens.weight":
            one += 1
    weights["lm_head.weight"][vocabulary["7"]] = 1
    save_file(weights, file, metadata={"format": "pt"})
    return to


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("forked_servers")
def test_a_student_of_another_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its teacher is the checkpoint, not the model that the other run started from; or an engine with it.

    That engine is somebody else's, or the run's own, which serves a judge beside it.
    """
    first, second, third = tmp_path / "teacher", tmp_path / "student", tmp_path / "asks"
    exported = tmp_path / "exported"
    options = ("--steps", "2", "--run-dir", str(first), "--export", str(exported))
    run("train", "--algo", "grpo", *TINY, *options)
    teacher = first / "checkpoints" / "2"
    options = ("--steps", "2", "--loss.top-k", "4", "--run-dir", str(second))
    apart = ("--teacher.ranks", "2", "--teacher.megatron.tensor-model-parallel-size", "2")
    run(*OPD, "--teacher.model", str(teacher), *apart, *options)
    for row in rows(second)[1:]:
        assert row["train/kl_teacher"] != 0
        assert row["train/kl_teacher_top"] > 0
        assert row["train/advantage_std"] == 0
        assert row["time/teacher_log_probs_s"] > 0
    saved = {path.name for path in (second / "checkpoints" / "2").iterdir() if path.is_dir()}
    assert saved == {"policy"}
    monkeypatch.setenv(TEACHER_TOKEN, TOKEN)
    with serving(launch_of(exported, tmp_path, context_length=64), LOCAL) as url:
        run(*OPD, "--teacher.url", url, "--steps", "1", "--run-dir", str(third))
    fourth, judge = tmp_path / "serves", sevens(exported, tmp_path / "judge")
    frozen = ("--frozen", f"teacher={exported}", "--frozen", f"judge={judge}")
    asks = ("--teacher.url", "frozen:teacher", "--reward", "judge", "--reward.judge.url", "frozen:judge")
    limits = ("--reward.judge.template", "{response}=", "--reward.judge.max-tokens", "4")
    pattern = ("--reward.judge.score-pattern", r"(\d)")
    run(*OPD, *frozen, *asks, *limits, *pattern, "--steps", "1", "--run-dir", str(fourth))
    # all students sample the same in their first step, before any training
    (asked,), (served,), (trained, _) = rows(third)[1:], rows(fourth)[1:], rows(second)[1:]
    assert asked["train/kl_teacher"] == pytest.approx(trained["train/kl_teacher"], abs=1e-4)
    assert served["train/kl_teacher"] == pytest.approx(trained["train/kl_teacher"], abs=1e-4)
    assert served["rollout/reward_mean"] == pytest.approx(0.7)
    assert {"frozen-teacher.log", "frozen-judge.log"} < {path.name for path in (fourth / "logs").iterdir()}
    assert 'url = "frozen:judge"' in (fourth / "run.toml").read_text()
    gone([one for one in psutil.process_iter(["cwd"]) if str(tmp_path) in str(one.info["cwd"])])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer is not the preset's."""
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_teacher_that_does_not_fit(refused: Refused, model: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert (
        refused(*OPD, "--teacher.model", gone) == f"--teacher.model: found {gone!r}, which is no directory."
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not a Hugging Face model directory" in refused(*OPD, "--teacher.model", str(empty))
    half = tmp_path / "run" / "checkpoints" / "3"
    half.mkdir(parents=True)
    (half / "state.json").write_text("{}")
    assert str(half) in refused(*OPD, "--teacher.model", str(half))
    said = refused(*OPD, "--teacher.model", str(model))
    assert said.startswith(f"--teacher.model {model}: its vocabulary differs in ")
    assert said.endswith("expected a model with the same tokenizer.")
    said = refused(*OPD, "--loss.top-k", "3", "--teacher.model", str(model))
    assert "its vocab_size is" in said
    said = refused(*OPD, "--loss.top-k", "4000", "--teacher.model", str(model))
    assert said.startswith("loss 'distill': found 4000 tokens to compare in each position, expected at most ")
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    assert "its model_type is 'llama', expected 'qwen3'" in refused(*OPD, "--teacher.model", str(other))


def test_an_engine_that_is_not_there(refused: Refused) -> None:
    said = refused(*OPD, "--teacher.url", "http://127.0.0.1:9")
    assert said.startswith("--teacher.url http://127.0.0.1:9: ")
    assert "cannot be reached" in said
