"""Columns of a plugin's own, from its generator to its estimator and its loss, through the command line."""

import json
from pathlib import Path

import pytest
from command import SMALL, Run, rows

PLUGIN = str(Path(__file__).with_name("own_columns.py"))


def test_a_plugin_reads_columns_of_its_own(run: Run, tmp_path: Path) -> None:
    """Over two ranks, mini-batches and micro-batches, each sample keeps the marks of its tokens.

    The plugin itself stops the run where one does not.
    """
    folder = tmp_path / "run"
    parts = ("--generator", "marking", "--advantage", "by_mark", "--loss", "marked")
    run(
        *("train", "--plugin", PLUGIN, "--algo", "grpo", "--model", "qwen3"),
        *("--task", "copy", *parts, *SMALL),
        *("--ranks", "2", "--minibatches", "2", "--tokens-per-rank", "64", "--steps", "2"),
        *("--save-rollouts-every", "1", "--run-dir", str(folder)),
    )
    for row in rows(folder)[1:]:
        lines = (folder / "samples" / f"rollout-{row['step']}.jsonl").read_text().splitlines()
        saved = [json.loads(line)["trajectory"] for line in lines]
        tokens = [token for one in saved for token in one["response_ids"]]
        assert row["train/marks"] == pytest.approx(sum(tokens) / len(tokens))
        assert row["train/grad_norm"] > 0
        gaps = [
            abs(trained - sampled)
            for one in saved
            for trained, sampled in zip(one["extras"]["trained_log_probs"], one["log_probs"], strict=True)
        ]
        assert row["train/ppo_gap"] > 0.001, "the second mini-batch is of another policy"
        assert sum(gaps) / len(gaps) == pytest.approx(row["train/ppo_gap"], rel=1e-2)
