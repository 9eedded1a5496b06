"""Freezing, through the command line: over two ranks, a resume, and a pattern that is nowhere found."""

from pathlib import Path

from command import SMALL, Run
from safetensors.numpy import load_file

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--eval-every", "0", "--lr", "0.01")
FREEZE = ("--model-hook", "freeze", "--model-hook.freeze.pattern")
COLLECTING = (
    *("--plugin", str(Path(__file__).with_name("collecting.py"))),
    *("--model-hook", "worker_collects", "--callback", "driver_collects"),
)


def test_what_is_frozen_leaves_a_run_as_it_came(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    run(*TRAIN, *FREEZE, "embedding", *COLLECTING, "--ranks", "2", "--steps", "1", "--run-dir", str(folder))
    run("train", "--resume", str(folder), "--steps", "2", "--export", str(out))
    before = load_file(folder / "model" / "model.safetensors")
    after = load_file(out / "model.safetensors")
    moved = {name for name, tensor in after.items() if (tensor != before[name]).any()}
    assert moved == set(after) - {"model.embed_tokens.weight"}


def test_a_pattern_that_is_nowhere_found_is_one_sentence(run: Run, tmp_path: Path) -> None:
    command = run(*TRAIN, *FREEZE, "embeding", "--steps", "1", "--run-dir", str(tmp_path / "run"), code=2)
    assert "--model-hook.freeze.pattern: found 'embeding', which is in none of the" in command.stderr
    assert "Traceback" not in command.stderr
