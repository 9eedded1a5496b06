"""A critic and a reference through the real command."""

from pathlib import Path

import pytest
from command import SMALL, Run, rows, untimed
from documented import undocumented

PPO = (
    *("train", "--algo", "ppo", "--model", "qwen3", *SMALL, "--minibatches", "2", "--eval-every", "1"),
    *("--kl-coef", "0.1", "--kl-place", "reward", "--reference.refresh-every", "1"),
    *("--megatron.adam-eps", "1e-3"),  # tiny gradients are noise, which Adam would make steps of
)


@pytest.mark.timeout(900)
def test_ppo_goes_on_as_if_nothing_had_happened(run: Run, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*PPO, "--steps", "3", "--run-dir", str(whole))
    run(*PPO, "--steps", "2", "--run-dir", str(broken))
    apart = ("--critic.ranks", "1", "--reference.ranks", "1")
    run("train", "--resume", str(broken), "--steps", "3", *apart)
    assert untimed(broken) == untimed(whole), "wherever critic and reference are, the numbers are the same"
    swapped = tmp_path / "swapped"
    run(*PPO, "--reference.placement", "swapped", "--steps", "2", "--run-dir", str(swapped))
    assert untimed(swapped) == untimed(whole)[:3]
    metrics = rows(whole)[1:]
    assert not undocumented({key for row in metrics for key in row})
    for row in metrics:
        assert row["train/updates"] == 2
        assert row["critic/loss"] > 0
        assert row["critic/grad_norm"] > 0
        assert row["critic/explained_variance"] <= 1
        assert abs(row["train/advantage_mean"]) < 1e-6, "whitened"
    for checkpoint in (broken / "checkpoints" / "3", swapped / "checkpoints" / "2"):
        saved = {path.name for path in checkpoint.iterdir() if path.is_dir()}
        assert saved == {"policy", "critic", "reference"}


@pytest.mark.timeout(900)
def test_roles_have_layouts_and_a_critic_a_schedule_of_its_own(run: Run, tmp_path: Path) -> None:
    own = ("--critic.lr-schedule", "linear", "--critic.warmup-steps", "1", "--critic.weight-decay", "0.1")
    layouts: dict[str, tuple[str, ...]] = {
        "same": (),
        "divided": (
            *("--critic.ranks", "2", "--critic.megatron.tensor-model-parallel-size", "2"),
            *("--reference.ranks", "2", "--reference.megatron.tensor-model-parallel-size", "2"),
        ),
        "fewer": ("--ranks", "2", "--critic.ranks", "1", "--reference.ranks", "1"),
    }
    found = {}
    for name, layout in layouts.items():
        run(*PPO, *own, *layout, "--steps", "2", "--run-dir", str(tmp_path / name))
        found[name] = rows(tmp_path / name)[1:]
    assert [row["critic/lr"] for row in found["same"]] != [row["train/lr"] for row in found["same"]]
    assert found["same"][-1]["critic/lr"] < found["same"][0]["critic/lr"]
    for name in ("divided", "fewer"):
        for mine, expected in zip(found[name], found["same"], strict=True):
            keys = ("critic/loss", "critic/grad_norm", "critic/lr", "train/loss", "train/grad_norm")
            for key in (*keys, "train/kl_reference"):
                assert mine[key] == pytest.approx(expected[key], rel=1e-4), (name, key)


def test_grpo_with_a_kl_in_the_loss(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(
        *(*PPO[:1], "--algo", "grpo", *PPO[3:5], *SMALL),
        *("--kl-coef", "0.1", "--steps", "2", "--run-dir", str(folder)),
    )
    first, second = rows(folder)[1:]
    assert first["train/kl_reference"] == 0
    assert second["train/kl_reference"] > 0
    saved = {path.name for path in (folder / "checkpoints" / "2").iterdir() if path.is_dir()}
    assert saved == {"policy"}, "a reference that never changes is the run's model"


def test_another_model_must_be_like_the_policy(run: Run, tmp_path: Path) -> None:
    """Refused before anything is started, and nothing is left."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 7}')
    for flags, said in (
        (("--algo", "ppo", "--critic.model", str(other)), "--critic.model"),
        (("--algo", "grpo", "--kl-coef", "0.1", "--reference.model", "gone"), "which is no directory"),
    ):
        command = run("train", *flags, "--model", "qwen3", "--run-dir", str(tmp_path / "run"), code=2)
        assert said in command.stderr
        assert not (tmp_path / "run").exists()
