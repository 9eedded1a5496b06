"""A base and an adapter that together are a given model, and the adapter's gradients from that model's."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore import AdapterSpec
from rlcore_toolkit import adapted_modules, adapter_name, read_adapter, write_adapter

RANK, ALPHA = 2, 6.0


def split_off(source: Path, base: Path, adapter: Path, **chosen: Any) -> AdapterSpec:
    """Write the new directories `base` and `adapter`, with random A and B for every linear layer of `source`.

    W of `source` is W of `base` + scale · B · A, up to rounding. `chosen`: fields of the adapter.
    """
    spec = AdapterSpec(**{"rank": RANK, "alpha": ALPHA, **chosen}, source=str(adapter))
    generator = torch.Generator().manual_seed(spec.seed)
    pairs = {
        module: (
            torch.randn(spec.rank, inputs, generator=generator) * inputs**-0.5,
            torch.randn(outputs, spec.rank, generator=generator) * 0.2,
        )
        for module, (outputs, inputs) in adapted_modules(source, spec).items()
    }
    shutil.copytree(source, base)
    for file in base.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            a, b = pairs.get(name.removesuffix(".weight"), (None, None))
            if a is not None and b is not None:
                tensors[name] = tensors[name] - spec.scale * (b @ a)
        save_file(tensors, file, metadata={"format": "pt"})
    adapter.mkdir()
    named = {
        adapter_name(module, part): tensor
        for module, pair in pairs.items()
        for part, tensor in zip("AB", pair, strict=True)
    }
    write_adapter(adapter, spec, base, named)
    return spec


def adapter_gradients(spec: AdapterSpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of A and B, by PEFT's names, from the gradients G of the merged weights.

    With W + s · B · A in the place of W: ∂A = s · Bᵀ · G, ∂B = s · G · Aᵀ.
    """
    gradients = {}
    for module, (a, b) in read_adapter(Path(spec.source)).items():
        gradient = weights[f"{module}.weight"]
        gradients[adapter_name(module, "A")] = spec.scale * b.t() @ gradient
        gradients[adapter_name(module, "B")] = spec.scale * gradient @ a.t()
    return gradients
