"""A base in NF4 is that of bitsandbytes in transformers, under an adapter of PEFT."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rlcore import (
    AdapterSpec,
    ModelKind,
    ModelSpec,
    OptimizerSettings,
    Part,
    Rendezvous,
    RoleSpec,
    RunConfig,
    SavedWeights,
    TokenOutputs,
)
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.shards import whole
from rlcore_fsdp.trainer import FsdpTrainer
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, random_batch
from rlcore_testing.trainer_reference import TEMPERATURE, hf_distributions, hf_model, linear_loss

pytest.importorskip("bitsandbytes")
EXACT = 1e-5
SETTINGS = OptimizerSettings(lr=1e-2, clip_grad=0.0)
CONFIG = FsdpConfig(quantize_base="nf4")


def spec_of(path: str) -> ModelSpec:
    return ModelSpec(path=path, bridge=Part(name="none", factory="rlcore.api.part:Part"))


def policy_of(joined: Any, path: str) -> Any:
    adapter = AdapterSpec(rank=4, alpha=8.0)
    spec = RoleSpec(kind=ModelKind.POLICY, model=spec_of(path), optimizer=SETTINGS, adapter=adapter)
    return joined.build({"policy": spec})["policy"]


def quantized(path: str) -> Any:
    """The model as transformers quantizes it."""
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(
        path, dtype=torch.float32, quantization_config=config, attn_implementation="eager", device_map="cpu"
    )
    return model.eval()


def compared(rank: int, world: int, port: int, path: str, folder: str) -> dict[str, float]:
    """How far log-probs, gradients, ten steps and published weights are from those of PEFT."""
    meeting = Rendezvous(rank=rank, world_size=world, host="127.0.0.1", port=port, seed=3)
    joined = FsdpTrainer(CONFIG).join(meeting, {})
    policy, batch = policy_of(joined, path), random_batch(8)

    def scores(scorer: Any) -> torch.Tensor:
        found = scorer.forward(batch, temperature=TEMPERATURE, tokens_per_rank=60)
        return torch.as_tensor(found["log_probs"])

    def train() -> Any:
        share = batch.select(range(rank, 8, world))
        return policy.train(share, linear_loss, temperature=TEMPERATURE, tokens_per_rank=60)

    plain = hf_distributions(hf_model(path), batch)[1]
    base = hf_distributions(quantized(path), batch)[1]
    gaps = {"base": scores(policy.base) - base}
    train(), train()
    after = scores(policy)
    policy.stage().write(Path(folder))
    peft = PeftModel.from_pretrained(
        quantized(path), folder, is_trainable=True
    ).train()  # eval rounds to bf16
    wanted = hf_distributions(peft, batch)[1]
    linear_loss(TokenOutputs(log_probs=wanted), batch).total.backward()
    gaps["PEFT"] = after - wanted
    merged = {name: one.clone() for name, one in policy.hf_tensors()}
    policy.sleep("publish")
    asleep = dict(policy.hf_tensors())
    gaps["asleep"] = torch.stack([(asleep[name] - one).abs().max() for name, one in merged.items()])
    policy.wake()
    if rank == 0:
        source = SavedWeights(spec=spec_of(path), folder=Path(folder))
        FsdpTrainer(CONFIG).to_hf(source, Path(f"{folder}-merged"), lambda done, total: None)
        files = load_file(f"{folder}-merged/model.safetensors")
        gaps["exported"] = torch.stack([(files[name] - one).abs().max() for name, one in merged.items()])
    again = hf_model(path)
    again.load_state_dict(merged)
    gaps["merged"] = after - hf_distributions(again, batch)[1]
    train()
    slopes = {name: whole(one.grad) for name, one in policy.adapter.tensors.items()}
    named: dict[str, Any] = {n.replace(".default.", "."): one.grad for n, one in peft.named_parameters()}
    gaps["gradients"] = torch.stack([(one - named[name]).abs().max() for name, one in slopes.items()])
    policy.load(Path(folder))
    gaps["loaded"] = after - scores(policy)
    joined.stop()
    moved = {"moved": after - plain, "rounded": base - plain}
    return {name: float(gap.detach().abs().max()) for name, gap in (gaps | moved).items()}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_base_in_nf4_is_that_of_transformers(ranks: int, tmp_path: Path) -> None:
    """Each of several ranks holds the base whole. A merged export is what engines get, to the bit."""
    path = str(make_qwen3(tmp_path / "model"))
    for gaps in run_ranks(compared, ranks, path, str(tmp_path / "adapter")):
        assert gaps.pop("moved") > 0.1
        assert gaps.pop("rounded") > 0.01
        assert gaps.pop("exported", 0.0) == gaps.pop("asleep") == gaps.pop("loaded") == 0.0
        assert all(gap < EXACT for gap in gaps.values()), gaps


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"lora.rank": 0}, "--trainer.quantize-base: .*add --lora.rank"),
        ({"lora.publish": "adapter"}, "--lora.publish: found adapter"),
        ({"reference.ranks": 1}, "--reference.ranks: found 1"),
    ],
)
def test_what_would_be_another_base_is_refused(settings: dict[str, Any], flag: str) -> None:
    run = RunConfig.of(**{"lora.rank": 4, **settings})
    [complaint] = CONFIG.complaints(run, {}, ())
    assert re.match(flag, complaint)
    assert not [*FsdpConfig().complaints(run, {}, ())]
