"""In a pack each sample has the hidden states that it has alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, BASE
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rlcore import TrainBatch
from rlcore_fsdp import attention
from rlcore_fsdp.attention import PackMask
from rlcore_fsdp.net import Net
from rlcore_fsdp.packs import Pack

PACKS = {
    "a prompt once": ([(0, 9, 4), (0, 9, 8), (0, 9, 4), (1, 9, 3)], 9 + 7 + 3 + 3 + 11),
    "no branch, or one": ([(0, 9, 0), (0, 9, 1), (1, 3, 1), (1, 3, 5), (1, 3, 0)], 9 + 3 + 4),
    "too little to spare": (
        [(0, 4, 5), (0, 4, 6), (0, 4, 90), (0, 4, 95), (1, 20, 20)],
        8 + 9 + 93 + 98 + 39,
    ),
    "a prompt twice": ([(0, 9, 4), (0, 9, 4), (1, 9, 3), (0, 9, 8), (0, 9, 8)], 9 + 3 + 3 + 9 + 7 + 7 + 11),
}
"""Group, tokens of prompt and of response of each sample; the places of the pack."""


def batch_of(samples: list[tuple[int, int, int]]) -> TrainBatch:
    """Random tokens; the prompts of a group are equal."""
    groups, prompts, responses = torch.tensor(samples).unbind(1)
    texts = torch.randint(0, BASE["vocab_size"], (len(samples), int(prompts.max())))
    answers = torch.randint(0, BASE["vocab_size"], (len(samples), int(responses.max())))
    parts = [
        part for row, (group, n, m) in enumerate(samples) for part in (texts[group, :n], answers[row, :m])
    ]
    return TrainBatch(
        tokens=torch.cat(parts),
        prompt_lengths=prompts,
        response_lengths=responses,
        per_sample={"group": groups},
    )


def net_of(name: str) -> Net:
    """A tiny random model of an architecture, which reads packs."""
    auto: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(AutoConfig.for_model(name, **{**BASE, **ARCHITECTURES[name]})).eval()
    net = Net(model, recompute=False, is_exact=True)
    assert net.choose_packs().startswith("packs")
    return net


@pytest.mark.parametrize("name", PACKS)
def test_a_sample_is_in_a_pack_what_it_is_alone(name: str) -> None:
    """Under full attention, and in a window."""
    net = net_of("olmo3")
    samples, places = PACKS[name]
    batch = batch_of(samples)

    def packed(rows: list[int]) -> tuple[Pack, Tensor]:
        part = net.pack(batch, rows)
        states = net(part, lambda hidden: {"hidden": hidden})["hidden"]
        return part, states[: part.targets.numel()]

    with torch.no_grad():
        part, states = packed(list(range(len(batch))))
        alone = torch.cat([packed([row])[1] for row in part.samples])
    assert part.tokens.numel() == places
    assert torch.allclose(states, alone, atol=1e-5)


def test_layers_share_the_mask_of_a_branch() -> None:
    net = net_of("olmo2")
    part = net.pack(batch_of([(0, 10, 8), (0, 10, 8)]), [0, 1])
    kept: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[-2:] == (7, 10 + 7):
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = net(part, lambda hidden: {"hidden": hidden})["hidden"]
    assert states.requires_grad
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("name", "found"), [("olmo3", {-1, 3}), ("llama4_text", {-1, None})], ids=["a window", "chunks"]
)
def test_flash_attention_is_asked_for_what_a_layer_sees(name: str, found: set[int | None]) -> None:
    """Chunks are none of its windows."""
    auto: Any = AutoModelForCausalLM
    settings: dict[str, Any] = {
        **BASE,
        "num_hidden_layers": 4,
        "sliding_window": 4,
        "attention_chunk_size": 4,
    }
    model = auto.from_config(AutoConfig.for_model(name, **settings))
    masks: list[PackMask] = []

    class Kept(PackMask):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            masks.append(self)

    attention.register("kept", Kept)
    model.set_attn_implementation("kept")
    pieces = [(0, 9, 0, 0), (9, 5, 0, 0)]
    positions = torch.cat([torch.arange(9), torch.arange(5)])[None]
    with torch.no_grad(), attention.packed(pieces, "sdpa"):
        model.base_model(input_ids=torch.ones_like(positions), position_ids=positions, use_cache=False)
    assert {mask.before for mask in masks} == found
    assert masks[0].ends.tolist() == [0, 9, 14]
