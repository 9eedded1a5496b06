"""A run whose weights reach two engines by broadcast, beside training."""

from pathlib import Path

from command import SMALL, Run, rows

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "3", "--engines", "2")


def test_weights_are_broadcast_to_two_engines(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(*TRAIN, "--engine.publish", "broadcast", "--engine.bucket-mb", "1", "--run-dir", str(folder))
    found = rows(folder)[1:]
    assert [row["weight_version"] for row in found] == [0, 1, 2]
    assert all(row["engine/replaced"] == 0 and row["train/kl_engine_max"] < 1e-4 for row in found)
