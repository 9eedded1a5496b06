"""The products of a step, counted by hand and by torch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rlcore.api.model_facts import DeltaFacts, ModelFacts
from rlcore.learning.flops import training_flops
from rlcore_machine.gpus import peak_tflops
from rlcore_toolkit import decoder_facts, expert_facts, latent_facts

FACTS = ModelFacts(
    layers=2, hidden=8, width=16, heads=4, groups=2, head=3, vocabulary=10, tied=False, qk_norm=True
)


def test_by_hand() -> None:
    """A layer: 8·3·(2·4 + 2·2) of attention, 3·8·16 of the MLP; output 8·10; keys and values 4·(3 + 3)."""
    weights = 2 * (288 + 384) + 80
    assert training_flops(FACTS, [5]) == 3 * (2 * 5 * weights + 5**2 * 2 * 24)
    assert training_flops(FACTS, [5, 7]) == training_flops(FACTS, [5]) + training_flops(FACTS, [7])


def test_delta_nets_by_hand() -> None:
    """The first layer: 8 times the rows of q and k, v, z, two rates; of the output 8·8; the state 3·8·5.

    The second: 8·3·(3·4 + 2·2), since its output has a gate.
    """
    delta = DeltaFacts(layers=frozenset({0}), key_heads=1, value_heads=2, key=5, value=4, taps=4)
    facts = replace(FACTS, delta=delta, output_gate=True)
    first, second = 8 * (2 * 5 + 8 + 8 + 4) + 8 * 8 + 3 * 8 * 5, 8 * 3 * (3 * 4 + 2 * 2)
    weights = first + second + 2 * 384 + 80
    assert training_flops(facts, [5]) == 3 * (2 * 5 * weights + 5**2 * 24)
    # of rank 3: two matrices of 8 columns, and up to 5 rates and 8 gates, in the place of z and two rates
    low = replace(facts, delta=replace(delta, rank=3))
    fewer = 8 * (8 + 2) - 3 * (2 * 8 + 5 + 8)
    assert training_flops(facts, [5]) - training_flops(low, [5]) == 3 * 2 * 5 * fewer


QWEN: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
LATENT: dict[str, Any] = {
    **QWEN,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 3,
}


@pytest.mark.parametrize("family", ["dense", "latent"])
def test_torch_counts_as_much(family: str) -> None:
    """But for attention, of which torch counts all pairs, and causal attention needs half."""
    model: Any
    if family == "dense":
        model, config = Qwen3ForCausalLM(Qwen3Config(**QWEN, **EAGER)), QWEN
        facts = decoder_facts(config)
    else:
        settings = DeepseekV3Config(**LATENT, **EAGER)
        model, config = DeepseekV3ForCausalLM(settings), LATENT
        facts = decoder_facts(config, latent=latent_facts(config))
    length = 16
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros(1, length, dtype=torch.int64)).logits
    pairs = facts.heads * length**2 * 2 * facts.layers
    head = (
        facts.latent.unrotated + facts.latent.rotated + facts.latent.value if facts.latent else 2 * facts.head
    )
    assert logits.shape[1] == length
    counted = counter.get_total_flops() - rotary(model, length)
    assert training_flops(facts, [length]) / 3 == pytest.approx(counted - pairs * head / 2, rel=1e-3)


def rotary(model: Any, length: int) -> int:
    """The product that makes the angles of the positions."""
    return 2 * length * int(model.model.rotary_emb.inv_freq.numel())


def test_of_experts_only_the_active_ones_count() -> None:
    config = {
        **QWEN,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    dense = training_flops(decoder_facts(config), [1])
    mixed = training_flops(decoder_facts(config, experts=expert_facts(config)), [1])
    assert mixed - dense == 6 * (32 * 8 + 3 * 32 * (2 * 24 + 24) - 3 * 32 * 48)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("", None),
    ],
)
def test_peaks(device: str, peak: float | None) -> None:
    assert peak_tflops(device) == peak
