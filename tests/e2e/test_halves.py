"""A run in halves: rollouts without a trainer, training without an engine, the numbers of a whole run."""

import gzip
import json
from pathlib import Path
from typing import Any

import torch
from command import Run, rows
from documented import undocumented

from rlcore_saved.batch_file import load_batch, read_about

SETTINGS = (
    *("train", "--algo", "grpo", "--model", "qwen3", "--steps", "3", "--prompts-per-step", "8"),
    *("--group-size", "4", "--minibatches", "2", "--kl-coef", "0.1", "--no-filter", "--eval-prompts", "4"),
)


def saved_of(folder: Path) -> tuple[str, ...]:
    """The run again, on the rollouts that lie in `folder`."""
    return (*SETTINGS, "--producer", "saved", "--producer.path", str(folder))


def trained(run_dir: Path) -> list[dict[str, Any]]:
    """What the trainer measured, and what it trained on."""
    kinds = ("train/", "rollout/", "reward/", "weight_version")
    return [
        {key: row[key] for key in row if key.startswith(kinds) and key != "rollout/tokens_per_s"}
        for row in rows(run_dir)
    ]


def test_training_alone_repeats_the_whole_run_to_the_last_bit(run: Run, tmp_path: Path) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    dumps = ("--save-rollouts-every", "1", "--save-batches-every", "3", "--profile-steps", "2-9")
    run(*SETTINGS, *dumps, "--run-dir", str(whole))
    with gzip.open(whole / "profile" / "steps-2-9-rank-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert {"step 2", "step 3", "aten::mm"} <= {event["name"] for event in events}
    assert "step 1" not in {event["name"] for event in events}
    assert all(row["perf/train_tflops"] > 0 and "perf/mfu" not in row for row in rows(whole)[1:])
    saved = whole / "rollouts"
    assert [file.name for file in sorted(saved.iterdir())] == [f"{n}.safetensors" for n in (1, 2, 3)]
    command = run(*saved_of(whole), "--only", "train", "--eval", "again=copy", "--run-dir", str(half))
    assert "step 3/3" in command.stdout
    assert "note: --eval has no effect: this run evaluates nothing" in command.stdout
    assert trained(half)[1:] == trained(whole)[1:]
    assert not (half / "logs" / "engine-0.log").exists(), "no engine is started"
    of_rank = load_batch(whole / "batches" / "3-rank-0.safetensors")
    assert torch.equal(of_rank.tokens, load_batch(saved / "3.safetensors").tokens)
    assert {"advantages", "old_log_probs", "reference_log_probs", "weights"} <= of_rank.per_token.keys()
    fewer = tmp_path / "fewer"
    (saved / "2.safetensors").unlink()
    command = run(*saved_of(saved), "--run-dir", str(fewer))
    assert trained(fewer)[1] == trained(whole)[1]
    assert trained(fewer)[2]["train/fresh"] == 0, "the rollout of step 3 is not of the weights of step 2"
    command = run("train", "--resume", str(fewer), "--steps", "2", code=2)
    more = "raise --steps above 2 and give the producer 'saved' more rollouts."
    assert f"2 steps, and it is to end after 2; to go on, {more}" in command.stderr
    (saved / "1.safetensors").write_bytes((saved / "1.safetensors").read_bytes()[:100])
    command = run(*saved_of(saved), code=2)
    assert f"{saved / '1.safetensors'}: cannot be read as safetensors" in command.stderr


def test_rollouts_alone_are_those_of_the_first_weights(run: Run, tmp_path: Path) -> None:
    whole, half, trainer = tmp_path / "whole", tmp_path / "half", tmp_path / "trainer"
    run(*SETTINGS, "--save-rollouts-every", "1", "--run-dir", str(whole))
    run(*SETTINGS, "--only", "rollout", "--run-dir", str(half))
    metrics = rows(half)
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert {row["weight_version"] for row in metrics} == {0}
    assert not undocumented({key for row in metrics for key in row})
    assert not (half / "checkpoints").exists()
    assert (half / "samples" / "rollout-3.jsonl").is_file()
    first, same = (load_batch(folder / "rollouts" / "1.safetensors") for folder in (whole, half))
    for kind in ("per_token", "per_sample"):
        mine, theirs = getattr(first, kind), getattr(same, kind)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert torch.equal(first.tokens, same.tokens)
    assert read_about(half / "rollouts" / "3.safetensors")["version"] == 0
    run(*saved_of(half), "--run-dir", str(trainer))
    assert trained(trainer)[1] == trained(whole)[1]
    assert trained(trainer)[3]["train/fresh"] == 0
