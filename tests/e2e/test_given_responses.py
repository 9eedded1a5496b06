"""Given responses through the real command: sft, resumed and then a warm start for grpo, and dpo."""

import json
from pathlib import Path

import pytest
from command import SMALL, Run, rows, untimed

SFT = (
    *("train", "--algo", "sft", "--model", "qwen3", "--prompts-per-step", "16", "--minibatches", "2"),
    *("--eval-every", "0", "--eval-prompts", "16"),
)


@pytest.mark.timeout(700)
def test_sft_goes_on_as_if_nothing_had_happened(run: Run, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*SFT, "--steps", "5", "--run-dir", str(whole))
    run(*SFT, "--steps", "3", "--run-dir", str(broken))
    run("train", "--resume", str(broken), "--steps", "5")
    found = untimed(whole)
    # the run that ended at step 3 evaluated there
    assert [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in untimed(broken)] == [
        {k: v for k, v in row.items() if not k.startswith("eval/")} for row in found
    ]
    assert rows(broken)[-1]["eval/copy/score"] == rows(whole)[-1]["eval/copy/score"]
    losses = [row["train/loss"] for row in found[1:]]
    assert losses[-1] < losses[0]
    assert not [key for key in found[-1] if "kl_engine" in key or "reward" in key or "advantage" in key]


@pytest.mark.timeout(700)
def test_sft_then_grpo_then_dpo_on_its_rollouts(run: Run, tmp_path: Path) -> None:
    taught, model = tmp_path / "sft", tmp_path / "model"
    run(*SFT, "--steps", "60", "--lr", "3e-3", "--run-dir", str(taught), "--export", str(model))
    score = rows(taught)[-1]["eval/copy/score"]
    assert score > 0.5
    limits = ("--max-prompt-tokens", "32", "--max-response-tokens", "8")
    warm = tmp_path / "grpo"
    run(
        *("train", "--algo", "grpo", "--model", str(model), *SMALL, *limits, "--temperature", "1.5"),
        *("--steps", "1", "--save-rollouts-every", "1", "--run-dir", str(warm)),
    )
    assert rows(warm)[0]["eval/copy/score"] == score
    pairs = tmp_path / "pairs.jsonl"
    run("pairs", str(warm / "samples" / "rollout-1.jsonl"), "--out", str(pairs))
    count = len(pairs.read_text().splitlines())
    preferred = tmp_path / "dpo"
    run(
        *("train", "--algo", "dpo", "--model", str(model), "--data", str(pairs), *limits, "--lr", "1e-4"),
        *("--prompts-per-step", str(count), "--steps", "3", "--run-dir", str(preferred)),
    )
    first, *_, last = rows(preferred)[1:]
    assert first["train/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert first["train/kl_reference"] == 0
    assert last["train/reward_margin"] > first["train/reward_margin"] == 0
    assert last["train/loss"] < first["train/loss"]
    assert not list((preferred / "logs").glob("engine-*.log")), "nothing is held out"
    assert json.loads(pairs.read_text().splitlines()[0]).keys() == {"prompt", "chosen", "rejected", "label"}
