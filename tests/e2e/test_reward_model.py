"""A run that serves its own reward model: the scores that it records are transformers'."""

import json
from pathlib import Path

import pytest
from command import SMALL, Run, rows
from transformers import AutoTokenizer

from rlcore_testing.reward_models import make_reward_model, reference_scores

TOLERANCE = 1e-6


def test_rewards_are_those_of_the_frozen_model(run: Run, tmp_path: Path) -> None:
    folder, model = tmp_path / "run", make_reward_model(tmp_path / "model")
    frozen = ("--frozen", f"rm={model}", "--reward", "reward_model", "--reward.reward-model.url", "frozen:rm")
    options = ("--steps", "1", "--save-rollouts-every", "1", "--run-dir", str(folder))
    run("train", "--algo", "grpo", "--model", "qwen3", *SMALL, *frozen, *options)
    lines = [
        json.loads(line)
        for name in ("eval-0", "rollout-1")
        for line in (folder / "samples" / f"{name}.jsonl").read_text().splitlines()
    ]
    assert len(lines) == 16 + 8 * 4
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [f"<user>{line['prompt']}<end><assistant>{line['response']}<end>" for line in lines]
    wanted = reference_scores(model, [tokenizer.encode(text, add_special_tokens=False) for text in texts])
    assert [line["score"] for line in lines] == pytest.approx([one for (one,) in wanted], abs=TOLERANCE)
    rewards = [line["score"] for line in lines[16:]]
    assert rows(folder)[1]["rollout/reward_mean"] == pytest.approx(sum(rewards) / len(rewards), abs=TOLERANCE)
    assert 'url = "frozen:rm"' in (folder / "run.toml").read_text()
