"""The plan against the trainer: bytes of real models, and the most that a real step makes at one time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsdp_ranks import join, model_of, policy_spec
from program import Program
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from rlcore import POLICY, AdapterSpec, OptimizerSettings
from rlcore.api.roles import policy_role
from rlcore_fsdp import model
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.plan.live import LiveBytes
from rlcore_fsdp.plan.step import Step, taken
from rlcore_fsdp.shards import local
from rlcore_testing.activations import equal_samples
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, policy_loss

WITHIN = 0.05
PROMPT, RESPONSE, SAMPLES = 1, 63, 4
ADAPTER = AdapterSpec(rank=8, alpha=16.0)
FEW = AdapterSpec(rank=2, alpha=16.0, targets=("v_proj", "down_proj"))
SIZES = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512},
    **{"tie_word_embeddings": False, "pad_token_id": 0},
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma2": {"sliding_window": 512, "query_pre_attn_scalar": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def _measured(rank: int, world: int, port: int, path: str, step: Step) -> tuple[int, int, int, int]:
    """Bytes of weights, gradients, moments, and the most beside them at one time in a step."""
    config = FsdpConfig.model_validate({name: getattr(step, name) for name in ("recompute", "quantize_base")})
    joined = join(rank, world, port, config)
    vars(model)["use_kernels"] = lambda *_: None  # the plan is of GPUs, which have none of them
    spec = policy_spec(model_of(path, step.dtype), None, OptimizerSettings(lr=1e-3))
    roles = dict(zip(map(policy_role, ("", *step.policies)), step.adapters, strict=False))
    specs = {role: replace(spec, overlay=adapter) for role, adapter in roles.items()}
    built: dict[str, Any] = {**joined.build(specs or {POLICY: spec})}
    policy, policies = built[POLICY], built.values()
    tensors = [*policy.net.model.parameters(), *policy.net.model.buffers()]
    copied = [one for one in policy.net.model.parameters() if isinstance(one, DTensor)]
    assert world > 1 or all(one.requires_grad for one in copied), "FSDP2 copies what is frozen"
    weights = sum({one.untyped_storage().data_ptr(): one.nbytes for one in map(local, tensors)}.values())
    moments = [moment for one in policies for moment in one.optimizer.moments().values()]
    batch = equal_samples(SAMPLES * step.micro_batches, PROMPT, RESPONSE)
    live = LiveBytes([*tensors, *moments])
    held = live.now
    with live:
        for one in policies:
            one.train(batch, policy_loss, temperature=1.0, tokens_per_rank=step.tokens)
    gradients = sum(one.nbytes for of in policies for one in of.optimizer.gradients())
    joined.stop()
    return weights, gradients, sum(one.nbytes for one in moments), live.peak - held - gradients


@pytest.mark.parametrize(
    ("name", "ranks", "dtype", "adapters", "recompute", "quantize_base"),
    [
        ("qwen3", 1, "bf16", (ADAPTER, FEW, ADAPTER), True, "none"),
        ("qwen3", 1, "bf16", (ADAPTER,), True, "nf4"),
        ("qwen3", 1, "bf16", (ADAPTER,), True, "fp8"),
        pytest.param("qwen3", 1, "fp32", (), False, "none", marks=pytest.mark.full),
        pytest.param("qwen3", 2, "bf16", (), True, "none", marks=pytest.mark.full),
        pytest.param("gemma2", 2, "bf16", (ADAPTER, FEW), False, "nf4", marks=pytest.mark.full),
        pytest.param("mixtral", 1, "bf16", (), False, "none", marks=pytest.mark.full),
    ],
)
def test_bytes_are_those_of_a_real_step(
    name: str,
    ranks: int,
    dtype: str,
    adapters: tuple[AdapterSpec, ...],
    recompute: bool,
    quantize_base: str,
    tmp_path: Path,
) -> None:
    if quantize_base == "nf4":
        pytest.importorskip("bitsandbytes")
    logging.disable_progress_bar()
    config = AutoConfig.for_model(name, **SIZES, **MODELS[name])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    step = Step(
        config=(tmp_path / "config.json").read_text(),
        dtype=dtype,
        ranks=ranks,
        tokens=SAMPLES * (PROMPT + RESPONSE),
        longest=PROMPT + RESPONSE,
        micro_batches=2,
        recompute=recompute,
        adapters=adapters,
        policies=tuple(str(number) for number in range(1, len(adapters))),
        quantize_base=quantize_base,
    )
    planned = taken(step)
    found = run_ranks(_measured, ranks, str(tmp_path), step)
    fullest = [max(sizes) for sizes in zip(*found, strict=True)]
    assert [planned.weights, planned.gradients, planned.optimizer] == fullest[:3]
    assert planned.activations == pytest.approx(fullest[3], rel=WITHIN)


SEARCH = ("--trainer", "fsdp", "--model", "qwen3", "--gpu-memory", "24")


def _planned(program: Program, *args: str, code: int = 0) -> Any:
    return program.json("plan", *SEARCH, "--gpus", "2", "--json", *args, code=code)


def test_the_command_counts_an_adapter_and_refuses_what_it_does_not_count(
    program: Program, tmp_path: Path
) -> None:
    whole = _planned(program)["layouts"][0]
    found = _planned(program, "--lora.rank", "4")
    best = found["layouts"][0]
    assert best["fits"]
    assert best["memory"]["optimizer"] == 2 * 4 * best["memory"]["trained"] < whole["memory"]["optimizer"] / 4
    assert whole["memory"]["reference"] == 0
    assert found["command"].endswith("--lora.rank 4 --ranks 2 --engines 2 --sglang.tp-size 1")
    assert [phase["name"] for phase in best["phases"]] == ["train", "publish", "generate"]
    assert "divides each tensor over all ranks" in _planned(program, "--tp", "2", code=2)["error"]
    assert "does not count a critic" in _planned(program, "--algo", "ppo", code=2)["error"]
    nothing = _planned(program, "--lora.rank", "4", "--lora.targets", "nothing", code=2)
    assert "matches no linear layer" in nothing["error"]
    (tmp_path / "run.toml").write_text('trainer = "fsdp"\nmodel = "qwen3"\n')
    file = str(tmp_path / "run.toml")
    said = program.refused("plan", "--config", file, "--gpu-memory", "24", "--network", "50")
    assert "--network: the planner of 'fsdp' counts bytes" in said


def test_each_policy_has_its_adapter(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"

    def planned(text: str, code: int = 0) -> Any:
        # a run writes out the settings of what it does not have, too
        start = 'trainer = "fsdp"\nmodel = "qwen3"\nalgo = "grpo"\ndtype = "bf16"\nfrozen = []\n'
        file.write_text(f"{start}[critic]\nlr = 1e-5\n{text}")
        return program.json("plan", "--config", str(file), "--gpu-memory", "24", "--json", code=code)

    one = planned('[lora]\nrank = 4\npublish = "adapter"\n')
    two = planned('[lora]\nrank = 4\npublish = "adapter"\n[policy.critic]\nrank = 8\n')
    numbers = one["memory"]["adapted"]
    assert one["memory"]["slot"] == numbers
    assert (two["memory"]["adapted"], two["memory"]["slot"]) == (3 * numbers, 2 * numbers)
    assert two["publication_bytes"] == 3 * one["publication_bytes"] == 3 * 2 * numbers
    for key in ("gradients", "optimizer"):
        assert two["memory"][key] == 3 * one["memory"][key]
    # three slots of rank 8 in place of two of rank 4, in bf16
    served = [plan["phases"][-1]["items"]["engine's weights"] for plan in (one, two)]
    assert served[1] - served[0] == 2 * (3 * 2 - 2) * numbers
    assert "which is an adapter; add lora.rank" in planned("[policy.critic]\n", 2)["error"]
    wrong = planned('[lora]\nrank = 4\npublish = "adapter"\n[policy.critic]\ntargets = ["none"]\n', 2)
    assert wrong["error"].startswith("--policy.critic.targets: found 'none'")
