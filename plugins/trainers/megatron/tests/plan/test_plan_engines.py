"""The plan against an engine: bytes of the weights and of the cache that `local` holds while it generates."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from rlcore import torch_dtype
from rlcore.plugins.loader import load
from rlcore_local.decoder import PromptTokens
from rlcore_local.generic import tensors_of
from rlcore_local.weights import Weights
from rlcore_megatron.plan.engines import Engines, sequence_cache, weights
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import Workload
from rlcore_megatron.plan.phases import Run, needs
from rlcore_sglang import cpu
from rlcore_testing.checkpoints import publish_fp8
from rlcore_toolkit import CACHE, GB, SERVED, Machines, read_facts

REGISTRY = load().registry
SEQUENCES, PROMPT, TOKENS = 6, 16, 24
WITHIN = 0.005
"""The plan leaves out scales of FP8, and that transformers keeps DeepSeek's routers in fp32."""
SIZES = {
    **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "max_position_embeddings": 512, "tie_word_embeddings": False},
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "pad_token_id": 0}
LATENT = {
    **{"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "v_head_dim": 16},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "num_nextn_predict_layers": 0},
    **{
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {**GROUPED, "tie_word_embeddings": True},
    "qwen3_moe": {**GROUPED, **ROUTED, "num_experts": 8},
    "deepseek_v3": {**ROUTED, **LATENT},
}
"""model_type → what differs from `SIZES`."""
PYTHON = "RLCORE_SGLANG_PYTHON"
POOLS = """
import sys, torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

tokens, *cases = sys.argv[1:]
for path, ranks, dtype in (case.split() for case in cases):
    config = ModelConfig(path)
    common = {"size": int(tokens), "page_size": 1, "dtype": getattr(torch, dtype), "device": "cpu"}
    common |= {"layer_num": config.num_hidden_layers, "enable_memory_saver": False}
    if hasattr(config, "kv_lora_rank"):
        latent = {"kv_lora_rank": config.kv_lora_rank, "qk_rope_head_dim": config.qk_rope_head_dim}
        buffers = MLATokenToKVPool(**latent, **common).kv_buffer
    else:
        heads = {"head_num": config.get_num_kv_heads(int(ranks)), "head_dim": config.head_dim}
        pool = MHATokenToKVPool(**heads, enable_alt_stream=False, **common)
        buffers = [*pool.k_buffer, *pool.v_buffer]
    print("bytes", sum(buffer.nbytes for buffer in buffers))
"""
"""What SGLang allocates on one of some ranks, for tokens and one of padding."""


def _made(name: str, path: Path) -> Path:
    logging.disable_progress_bar()
    config = AutoConfig.for_model(name, **{**SIZES, **MODELS[name]})
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@torch.inference_mode()
def _generate(decoder: Any) -> None:
    """Until it holds `SEQUENCES` of `TOKENS` tokens each."""
    decoder.prefill([PromptTokens(tokens=range(3, 3 + PROMPT), longest=TOKENS)] * SEQUENCES)
    for length in range(PROMPT, TOKENS):
        decoder.decode(torch.arange(SEQUENCES), torch.full((SEQUENCES,), length))


@pytest.mark.parametrize(
    ("name", "dtype"), [("qwen3", "bf16"), ("qwen3_moe", "fp32"), ("deepseek_v3", "bf16")]
)
def test_an_engine_holds_what_is_planned(name: str, dtype: str, tmp_path: Path) -> None:
    """Of latent attention the latents, as SGLang does."""
    served = Weights(_made(name, tmp_path), torch_dtype(dtype), None)
    decoder: Any = served.decoder.decoders[""]
    _generate(decoder)
    storages = [tensor.untyped_storage() for tensor in served.model.state_dict().values()]
    held = sum({one.data_ptr(): one.nbytes() for one in storages}.values())
    if served.path == "lean":
        cache = [decoder.cache]
    else:
        cache = [held[key] for layer in decoder.cache.layers for held, key in tensors_of(layer)]

    engines = Engines(count=1, sequences=SEQUENCES, tokens=TOKENS, dtype=dtype)
    run = Run(work=Workload(), engines=(engines,), is_colocated=False)
    machines = Machines(gpus=2, memory=80 * GB)
    items = needs(read_facts(str(tmp_path), REGISTRY), Layout(world=1), run, machines).phases[-1].items
    assert items[SERVED] == pytest.approx(held, rel=WITHIN)
    assert items[CACHE] == sum(tensor.nbytes for tensor in cache)


def test_a_quantized_engine_holds_what_is_planned(tmp_path: Path) -> None:
    """`local` computes with full weights beside those in FP8, which are what other engines hold."""
    publish_fp8(_made("qwen3", tmp_path), (32, 32))
    held = sum(tensor.nbytes for tensor in Weights(tmp_path, torch.bfloat16, None).tensors().values())
    engines = Engines(count=1, sequences=1, tokens=1, dtype="bf16", weight_bits=8)
    assert weights(read_facts(str(tmp_path), REGISTRY), engines, "bf16") == pytest.approx(held, rel=WITHIN)


@pytest.mark.sglang
@pytest.mark.timeout(300)
def test_sglang_divides_its_cache_as_planned(tmp_path: Path) -> None:
    cases, planned = [], []
    for name in ("qwen3", "deepseek_v3"):
        path = _made(name, tmp_path / name)
        facts, config = read_facts(str(path), REGISTRY), json.loads((path / "config.json").read_text())
        # SGLang reads this of a DeepSeek, and transformers does not write it
        (path / "config.json").write_text(json.dumps({**config, "moe_layer_freq": 1}))
        for ranks in (1, 2, 4):
            for dtype in (torch.bfloat16, torch.float8_e4m3fn):
                one = Engines(count=1, sequences=1, tokens=TOKENS, tensor=ranks, cache_bytes=dtype.itemsize)
                cases.append(f"{path} {ranks} {str(dtype).removeprefix('torch.')}")
                planned.append(sequence_cache(facts, one, "bf16"))
    done = subprocess.run(
        [os.environ[PYTHON], "-c", POOLS, str(TOKENS - 1), *cases],
        capture_output=True,
        text=True,
        env={**os.environ, **cpu.environment(os.environ[PYTHON], threads=1)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [int(line.split()[1]) for line in done.stdout.splitlines() if "bytes" in line] == planned
