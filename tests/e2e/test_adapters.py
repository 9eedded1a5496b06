"""Runs whose publications carry the adapter alone, and engines that do not sample with it."""

import os
from pathlib import Path

import pytest
from command import SMALL, Run, rows

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--eval-every", "0", "--lr", "0.01")
ADAPTER = ("--lora.rank", "4", "--lora.publish", "adapter")
PYTHON = "RLCORE_SGLANG_PYTHON"
BROKEN = ("--plugin", str(Path(__file__).with_name("broken_adapters.py")))


@pytest.mark.parametrize(
    ("trainer", "way", "sleep"), [("fsdp", "shared_memory", "all"), ("megatron", "broadcast", "none")]
)
def test_engines_add_the_adapter_to_their_base(
    trainer: str, way: str, sleep: str, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    flags = ("--trainer", trainer, "--engine.publish", way, "--sleep", sleep, "--save-every", "1")
    run(*TRAIN, *ADAPTER, *flags, "--steps", "1", "--run-dir", str(folder))
    run("train", "--resume", str(folder), "--steps", "3")
    found = rows(folder)[-3:]
    assert [row["step"] for row in found] == [1, 2, 3]
    assert all(row["engine/adapter_gap"] < 1e-5 < 1e-3 < row["engine/adapter_effect"] for row in found)
    assert all(row["train/kl_engine_max"] < 1e-4 for row in found)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("ignoring", "samples from the model without the adapter"),
        pytest.param("halving", "does not apply the adapter as the trainer does", marks=pytest.mark.full),
        pytest.param("keeping", "samples with the adapter of the publication before", marks=pytest.mark.full),
    ],
)
def test_an_engine_that_does_not_sample_with_it_ends_the_run(
    fault: str, what: str, run: Run, tmp_path: Path
) -> None:
    flags = ("--engine", fault, "--steps", "3", "--run-dir", str(tmp_path / "run"))
    command = run(*TRAIN, *ADAPTER, *BROKEN, *flags, code=1)
    assert what in command.stderr
    assert "Traceback" not in command.stderr
    assert len(rows(tmp_path / "run")) == 1 + (fault == "keeping"), "at the first publication that differs"


@pytest.mark.sglang
@pytest.mark.parametrize(("trainer", "way"), [("fsdp", "disk"), ("megatron", "tensor")])
def test_sglang_adds_the_adapter_to_its_base(trainer: str, way: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("--engine", "sglang", "--engine.python", os.environ[PYTHON], "--engine.publish", way)
    ahead = (
        ("--max-staleness", "1", "--on-publish", "wait") if way == "tensor" else ("--router", "round_robin")
    )
    run(*TRAIN, *ADAPTER, *flags, *ahead, "--trainer", trainer, "--steps", "3", "--run-dir", str(folder))
    found = rows(folder)[-3:]
    assert [row["weight_version"] for row in found] == [0, 1, 2]
    assert all(row["engine/adapter_gap"] < 1e-5 < 1e-3 < row["engine/adapter_effect"] for row in found)
    on_policy = found if way == "disk" else found[:1]
    assert all(row["train/kl_engine_max"] < 1e-4 for row in on_policy), (
        "also by the router, which no probe asks"
    )


@pytest.mark.sglang
def test_a_client_that_names_no_adapter_ends_the_run(run: Run, tmp_path: Path) -> None:
    flags = ("--engine", "silent", "--engine.python", os.environ[PYTHON], "--steps", "3")
    command = run(*TRAIN, *ADAPTER, *BROKEN, *flags, "--run-dir", str(tmp_path / "run"), code=1)
    assert "samples from the model without the adapter" in command.stderr
    assert len(rows(tmp_path / "run")) == 1, "at the first publication that differs"
