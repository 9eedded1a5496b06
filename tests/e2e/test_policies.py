"""Two policies over one base learn at the same time, each from the prompts that name it."""

import json
import os
from pathlib import Path

import pytest
from command import Run, rows, untimed
from safetensors.torch import load_file

from rlcore_cli.main import run as rlcore

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
ADAPTER = "adapter_model.safetensors"
MIRROR = "mirror"
"""The policy beside the run's own."""


def flags(folder: Path) -> tuple[str, ...]:
    """A run on digits that the run's own policy copies, and `MIRROR` writes backwards."""
    rows = []
    for number in range(100, 164):
        text = str(number)
        rows += [
            {"prompt": f"{text}=", "label": text},
            {"prompt": f"{text}=", "label": text[::-1], "metadata": {"policy": MIRROR}},
        ]
    data = folder / "digits.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (
        *("train", "--algo", "grpo", "--model", "qwen3", "--data", str(data)),
        *("--reward", "token_match", "--generator.policy-key", "policy"),
        *("--lora.rank", "4", "--lora.publish", "adapter", "--lr", "0.01"),
        *(f"--policy.{MIRROR}.lr", "0.02", f"--policy.{MIRROR}.rank", "2"),
        *(f"--policy.{MIRROR}.targets", '["v_proj", "down_proj"]'),
        *("--prompts-per-step", "8", "--group-size", "4", "--eval-every", "0", "--max-response-tokens", "6"),
    )


@pytest.mark.parametrize(
    "trainer",
    [
        ("--trainer", "fsdp", "--ranks", "2", "--engines", "2"),
        ("--ranks", "2", "--megatron.tensor-model-parallel-size", "2"),
    ],
    ids=["fsdp", "megatron"],
)
def test_each_learns_and_resumes_with_the_same_bits(
    trainer: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = (*trainer, "--sleep", "all", "--minibatches", "2", "--save-rollouts-every", "1")
    run(*flags(tmp_path), *more, "--steps", "3", "--run-dir", str(whole))
    run(*flags(tmp_path), *more, "--steps", "2", "--run-dir", str(parts))
    run("train", "--resume", str(parts), "--steps", "3")
    assert untimed(parts)[-1] == untimed(whole)[-1]

    for row in untimed(whole)[-3:]:
        assert row["train/samples"] + row[f"policy.{MIRROR}/samples"] == 32
        assert (row["train/lr"], row[f"policy.{MIRROR}/lr"]) == (0.01, 0.02)
        for role in ("train", f"policy.{MIRROR}"):
            assert row[f"{role}/updates"] == 2
            assert row[f"{role}/kl_engine_max"] < 1e-4
        for role in ("engine", f"policy.{MIRROR}"):
            assert row[f"{role}/adapter_gap"] < 1e-5 < 1e-3 < row[f"{role}/adapter_effect"]
    saved = [json.loads(line) for line in (whole / "samples" / "rollout-3.jsonl").read_text().splitlines()]
    palindromes = {text for text in map(str, range(100, 164)) if text == text[::-1]}
    assert all(
        one["label"] == one["prompt"][:-1][:: -1 if "policy" in one else 1] or one["label"] in palindromes
        for one in saved
    )
    assert {len(one["trajectory"]["extras"]["advantages"]) - one["tokens"] for one in saved} == {0}

    found = {}
    for role in ("policy", f"policy.{MIRROR}"):
        files = [folder / "checkpoints" / "3" / role / ADAPTER for folder in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes()
        found[role] = {min(one.shape) for one in load_file(files[0]).values()}
    assert found == {"policy": {4}, f"policy.{MIRROR}": {2}}
    out = tmp_path / MIRROR
    assert rlcore(["export", str(whole), str(out), "--adapter", "--policy", MIRROR]) == 0
    assert (out / ADAPTER).read_bytes() == files[0].read_bytes()
    assert rlcore(["export", str(whole), str(tmp_path / "none"), "--policy", "nobody"]) == 2


def test_a_router_hands_on_who_answers(run: Run, tmp_path: Path) -> None:
    """In the second step adapters differ from the base, on each of the engines that the router asks."""
    several = ("--trainer", "fsdp", "--engines", "2", "--router", "round_robin", "--steps", "2")
    run(*flags(tmp_path), *several, "--run-dir", str(tmp_path / "run"))
    row = rows(tmp_path / "run")[-1]
    assert row["train/kl_engine_max"] < 1e-4
    assert row[f"policy.{MIRROR}/kl_engine_max"] < 1e-4


def test_an_engine_that_mixes_them_up_ends_the_run(run: Run, tmp_path: Path) -> None:
    broken = ("--plugin", str(HERE / "broken_adapters.py"), "--engine", "mixing", "--steps", "2")
    alike = (f"--policy.{MIRROR}.rank", "4", f"--policy.{MIRROR}.targets", '["all-linear"]')
    command = run(*flags(tmp_path), *alike, *broken, code=1)
    assert f"samples with the adapter of the policy {MIRROR!r} for the run's own policy" in command.stderr


@pytest.mark.sglang
@pytest.mark.parametrize("way", ["tensor", "disk"])
def test_sglang_serves_both(way: str, run: Run, tmp_path: Path) -> None:
    engine = ("--engine", "sglang", "--engine.python", os.environ["RLCORE_SGLANG_PYTHON"])
    alike = (f"--policy.{MIRROR}.targets", '["all-linear"]', "--engine.publish", way, "--steps", "2")
    run(*flags(tmp_path), *engine, *alike, "--run-dir", str(tmp_path / "run"))
    for row in rows(tmp_path / "run")[-2:]:
        assert row["train/kl_engine_max"] < 1e-4
        assert row[f"policy.{MIRROR}/kl_engine_max"] < 1e-4
        for role in ("engine", f"policy.{MIRROR}"):
            assert row[f"{role}/adapter_gap"] < 1e-5 < 1e-3 < row[f"{role}/adapter_effect"]
