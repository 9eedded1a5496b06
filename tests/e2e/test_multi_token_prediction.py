"""A run that trains the layer for multi-token prediction: published, resumed and exported."""

import json
from pathlib import Path

import pytest
from command import SMALL, Run
from safetensors.numpy import load_file

from rlcore_deepseek.tiny import CONFIG
from rlcore_testing.mtp import publish_mtp
from rlcore_toolkit import write_tiny_model

TRAIN = ("train", "--algo", "grpo", *SMALL, "--eval-every", "0", "--lr", "0.01")
LAYERS = CONFIG["num_hidden_layers"]
OF_LAYER = f"model.layers.{LAYERS}."


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_tiny_model(tmp_path / "model", {**CONFIG, "num_hidden_layers": LAYERS + 1}, 0)
    publish_mtp(path)
    return path


@pytest.mark.parametrize("publish", ["disk", "delta"])
def test_the_layer_is_trained_and_exported(run: Run, model: Path, tmp_path: Path, publish: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    asked = ("--megatron.mtp-num-layers", "1", "--engine.publish", publish)
    run(*TRAIN, "--model", str(model), *asked, "--steps", "2", "--run-dir", str(folder))
    run("train", "--resume", str(folder), "--steps", "3", "--export", str(out))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/mtp_loss"] for line in lines if "train/mtp_loss" in line]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name, tensor in after.items() if (tensor != before[name]).any()}
    assert {name for name in after if name.startswith(OF_LAYER)} - moved <= {
        f"{OF_LAYER}mlp.gate.e_score_correction_bias"
    }
    assert (after[f"{OF_LAYER}embed_tokens.weight"] == after["model.embed_tokens.weight"]).all()
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 1


def test_unasked_it_is_left_out_with_a_note(run: Run, model: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    command = run(
        *TRAIN, "--model", str(model), "--steps", "1", "--run-dir", str(folder), "--export", str(out)
    )
    assert "Left out: layers for multi-token prediction (1)" in command.stdout + command.stderr
    assert not [name for name in load_file(out / "model.safetensors") if name.startswith(OF_LAYER)]
