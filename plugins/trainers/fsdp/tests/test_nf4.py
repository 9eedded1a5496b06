"""A base in NF4 is that of bitsandbytes in transformers, under an adapter of PEFT."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_ranks import ADAPTER, export, join, model_of, policy_of, policy_spec, scores, train
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from rlcore import ConfigError, RunConfig, SavedWeights, TokenOutputs
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.shards import whole
from rlcore_fsdp.trainer import FsdpTrainer
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, random_batch
from rlcore_testing.trainer_reference import hf_distributions, hf_model, linear_loss

pytest.importorskip("bitsandbytes")
EXACT = 5e-6
CONFIG = FsdpConfig(quantize_base="nf4")


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
    joined, batch = join(rank, world, port, CONFIG), random_batch(8)
    policy = policy_of(joined, policy_spec(model_of(path)))
    plain = hf_distributions(hf_model(path), batch)[1]
    base = hf_distributions(quantized(path), batch)[1]
    gaps = {"base": scores(policy.base, batch) - base}
    for _ in range(2):
        train(policy, batch, rank, world)
    after = scores(policy, batch)
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
        files = load_file(export(CONFIG, model_of(path), folder) / "model.safetensors")
        gaps["exported"] = torch.stack([(files[name] - one).abs().max() for name, one in merged.items()])
    again = hf_model(path)
    again.load_state_dict(merged)
    gaps["merged"] = after - hf_distributions(again, batch)[1]
    train(policy, batch, rank, world)
    slopes = {name: whole(one.grad) for name, one in policy.adapter.tensors.items()}
    named: dict[str, Any] = {n.replace(".default.", "."): one.grad for n, one in peft.named_parameters()}
    gaps["gradients"] = torch.stack([(one - named[name]).abs().max() for name, one in slopes.items()])
    policy.load(Path(folder))
    gaps["loaded"] = after - scores(policy, batch)
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


JAMBA = {
    **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 1, "attn_layer_period": 2},
    **{"attn_layer_offset": 1, "mamba_dt_rank": 64, "use_mamba_kernels": False},
}


def exported(rank: int, world: int, port: int, path: str, dtype: str, folder: str) -> dict[str, float]:
    """After a step: how far log-probs are from those of the published weights, and an export from these."""
    joined, batch, model = join(rank, world, port, CONFIG), random_batch(8), model_of(path, dtype)
    policy = policy_of(joined, policy_spec(model, replace(ADAPTER, targets=("in_proj", "q_proj"))))
    train(policy, batch)
    after = scores(policy, batch)
    merged = {name: one.clone() for name, one in policy.hf_tensors()}
    policy.stage().write(Path(folder))
    out = export(CONFIG, model, folder)
    files, again = load_file(out / "model.safetensors"), hf_model(str(out))
    joined.stop()
    return {
        "exported": max(float((files[name] - one).abs().max()) for name, one in merged.items()),
        "log_probs": float((after - hf_distributions(again, batch)[1]).detach().abs().max()),
    }


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_model_that_computes_with_the_weights_itself(dtype: str, tmp_path: Path) -> None:
    """Jamba multiplies by dt_proj's weight without its layer."""
    auto: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    auto.from_config(AutoConfig.for_model("jamba", **JAMBA)).save_pretrained(tmp_path / "model")
    [gaps] = run_ranks(exported, 1, str(tmp_path / "model"), dtype, str(tmp_path / "adapter"))
    assert gaps["exported"] == 0.0
    assert gaps["log_probs"] < (EXACT if dtype == "fp32" else 0.02)  # bf16 rounds activations


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


@pytest.mark.parametrize(
    ("version", "module", "said", "plain_lora"),
    [("0.49.2", "x", r"here is 0\.49\.2", True), ("0.50.0", "bitsandbytes.functional", "imported", False)],
)
def test_bitsandbytes_must_be_new_and_whole(
    version: str, module: str, said: str, plain_lora: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An export on another machine needs it too. An old one is no matter without NF4; PEFT imports it."""
    path = make_qwen3(tmp_path)
    (path / "adapter_config.json").touch()
    monkeypatch.setattr("rlcore_fsdp.config.version", lambda _: version)
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("rlcore_fsdp.lora", "rlcore_fsdp.nf4"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    source = SavedWeights(spec=model_of(str(path)), folder=path)
    with pytest.raises(ConfigError, match=said):
        FsdpTrainer(CONFIG).to_hf(source, tmp_path / "out", lambda done, total: None)
    run = RunConfig.of(**{"lora.rank": 4})
    assert len([*CONFIG.complaints(run, {}, ())]) == plain_lora
    with nullcontext() if plain_lora else pytest.raises(ConfigError, match=said):
        FsdpTrainer(FsdpConfig()).overlay(run, model_of(str(path)))
