"""Low-rank adapters that trainers share: which modules have one, and its first values.

A module goes by its Hugging Face name without `.weight`, as the files of the base have it: an expert is a
module by itself. Its A is [rank, inputs], its B [outputs, rank], its weight becomes W + scale · B · A.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlcore import ALL_LINEAR, AdapterSpec, ConfigError, did_you_mean, parse_json, shapes_in

_WEIGHT = ".weight"
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_NOT_ADAPTED = frozenset({"gate", "shared_expert_gate", "router", "indexer"})
"""Modules of a layer that choose or weigh experts, or keys."""
Modules = Mapping[str, tuple[int, int]]
"""Name → outputs and inputs."""


def linear_modules(path: Path) -> Modules:
    """The linear layers of the decoder in the Hugging Face directory `path`; without the output layer."""
    config = parse_json((path / "config.json").read_text())
    layers = int(config.get("text_config", config).get("num_hidden_layers", 0))
    modules = {}
    for name, shape in shapes_in(path).items():
        module, found = name.removesuffix(_WEIGHT), _LAYER.search(name)
        is_matrix = name.endswith(_WEIGHT) and len(shape) == 2
        # Layers behind the last one predict several tokens: they have no adapter.
        if not (is_matrix and found and int(found[1]) < layers):
            continue
        if is_adaptable(module):
            modules[module] = (shape[0], shape[1])
    return modules


def is_adaptable(module: str) -> bool:
    """Whether a linear layer of this name may have an adapter."""
    return _NOT_ADAPTED.isdisjoint(module.split("."))


def adapted_modules(path: Path, spec: AdapterSpec) -> Modules:
    """Those of `linear_modules` that `spec` targets.

    ConfigError where a target matches none of them, or a dimension is below the rank.
    """
    return targeted(linear_modules(path), spec)


def targeted(modules: Modules, spec: AdapterSpec) -> Modules:
    """Those of `modules` that `spec` targets. ConfigError as `adapted_modules`."""
    names = modules.keys() & set(spec.targets)
    for target in set(spec.targets) - names:
        found = {module for module in modules if _matches(module, target)}
        if not found:
            ends = sorted({module.rpartition(".")[2] for module in modules})
            raise ConfigError(
                f"--lora.targets: found {target!r}, which matches no linear layer; the model has "
                f"{', '.join(ends)}.{did_you_mean(target, ends)}"
            )
        names |= found
    chosen = {module: shape for module, shape in modules.items() if module in names}
    for module, shape in chosen.items():
        if spec.rank > min(shape):
            raise ConfigError(
                f"--lora.rank: found {spec.rank}, expected at most {min(shape)}, the smaller dimension of "
                f"{module} {list(shape)}; or leave the module out by --lora.targets."
            )
    return chosen


def first_a(spec: AdapterSpec, module: str, inputs: int) -> Tensor:
    """The first A of a module, fp32 [rank, inputs]: PEFT's, uniform within ±1/√inputs (He et al., a = √5).

    It follows from the seed and the name alone, whatever the layout of the ranks.
    """
    digest = hashlib.sha256(f"{spec.seed} {module}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    bound = 1 / math.sqrt(inputs)
    return torch.empty(spec.rank, inputs).uniform_(-bound, bound, generator=generator)


def with_product(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale · B · A, made in fp32 and cast once to the dtype of `weight`."""
    return torch.add(weight.float(), b.float() @ a.float(), alpha=scale).to(weight.dtype)


def _matches(module: str, target: str) -> bool:
    if target == ALL_LINEAR or module.endswith(f".{target}"):
        return True
    try:
        return re.fullmatch(target, module) is not None
    except re.error as error:
        raise ConfigError(
            f"--lora.targets: found {target!r}, which is no regular expression: {error}."
        ) from error
