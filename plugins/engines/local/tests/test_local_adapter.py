"""An adapter that was published alone: it is added to the weights that the server loaded, each time anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlcore_local.requests import RequestError
from rlcore_local.weights import Weights
from rlcore_toolkit import adapter_name, with_product

MODULES = {
    "qwen3": ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"),
    "qwen3_moe": ("model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts.2.up_proj"),
}


def _adapter(held: dict[str, Tensor], family: str, seed: int, *, rank: int = 3) -> dict[str, Tensor]:
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for module in MODULES[family]:
        outputs, inputs = held[f"{module}.weight"].shape
        for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            tensors[adapter_name(module, part)] = torch.randn(shape, generator=generator)
    return tensors


@pytest.mark.parametrize("family", MODULES)
def test_each_publication_begins_with_the_base(family: str, model_path: Callable[..., Path]) -> None:
    weights = Weights(model_path(family), torch.float32, None)
    base = {name: tensor.clone() for name, tensor in weights.tensors().items()}
    for seed in (0, 1):
        adapter = _adapter(base, family, seed)
        # in two pieces, as buckets may cut it
        for part in "AB":
            weights.update_from_tensors(
                {name: one for name, one in adapter.items() if f"lora_{part}" in name}
            )
        weights.update_from_tensors({})  # as a delta without a change does
        assert weights.checksums().keys() == adapter.keys(), "what was published"
        held = weights._used()
        for name, tensor in base.items():
            a, b = (adapter.get(adapter_name(name.removesuffix(".weight"), part)) for part in "AB")
            expected = tensor if a is None or b is None else with_product(tensor, a, b, 1.0)
            assert torch.equal(held[name], expected), name
    weights.update_from_tensors(base)
    assert weights.checksums().keys() == base.keys()


def test_an_adapter_of_another_model_changes_nothing(model_path: Callable[..., Path]) -> None:
    weights = Weights(model_path("qwen3"), torch.float32, None)
    before = weights.checksums()
    good = _adapter(weights.tensors(), "qwen3", 0)
    first, *_ = MODULES["qwen3"]
    elsewhere = {name.replace(first, "model.layers.7.mlp.up_proj"): one for name, one in good.items()}
    narrow = {**good, adapter_name(first, "A"): torch.ones(3, 5)}
    for bad, reason in ((elsewhere, "not of this model"), (narrow, "but the weight is")):
        with pytest.raises(RequestError, match=reason):
            weights.update_from_tensors(bad)
        assert weights.checksums() == before
