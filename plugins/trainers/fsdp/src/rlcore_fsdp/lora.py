"""An adapter of PEFT in a model of transformers: https://arxiv.org/abs/2106.09685."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore import AdapterSpec, ConfigError
from rlcore_fsdp.config import nf4_complaint
from rlcore_fsdp.shards import local, own_rows
from rlcore_toolkit import (
    SafetensorsFiles,
    WeightNames,
    adapted_modules,
    adapter_name,
    first_a,
    published_adapter,
    read_adapter,
    with_product,
)

Read = Callable[[Tensor], Tensor]
"""From a parameter to all of it, detached."""

if not nf4_complaint():  # PEFT imports it too, and rlcore with care
    import rlcore_fsdp.nf4  # noqa: F401  # isort: skip
from peft import LoraConfig, inject_adapter_in_model  # noqa: E402
from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: E402

FIRST = "default"
"""PEFT's name, in memory, of the adapter of the run's own policy."""


def modules_in_memory(model: PreTrainedModel, path: str, spec: AdapterSpec) -> dict[str, str]:
    """Module in the files → module of `model`, of all that `spec` targets. ConfigError."""
    names = WeightNames(model, SafetensorsFiles.of(Path(path)).names)
    places = {source: name for name, source in names.sources.items()}
    found: dict[str, str] = {}
    for module in adapted_modules(Path(path), spec):
        place = places.get(f"{module}.weight", "").removesuffix(".weight")
        if not place or not isinstance(model.get_submodule(place), nn.Linear):
            raise ConfigError(
                f"--lora.targets: found {module}, which the trainer 'fsdp' holds in one tensor with others, "
                "where PEFT has no adapter for it alone; name the targets without it."
            )
        found[module] = place
    return found


def inject(
    model: PreTrainedModel, places: Mapping[str, str], spec: AdapterSpec, name: str = FIRST
) -> dict[str, Any]:
    """Make PEFT's layers of modules of `model`; by their names in the files. `places`: of those in memory.

    `name`: of the adapter in memory. Layers that an adapter has made are given another one.
    """
    alpha: Any = spec.alpha  # PEFT asks for an int, and computes with any number
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=alpha,
        target_modules=list(places.values()),
        lora_dropout=spec.dropout,
        use_rslora=spec.rslora,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # of several policies
        inject_adapter_in_model(config, model, adapter_name=name, low_cpu_mem_usage=True)
    return {module: model.get_submodule(place) for module, place in places.items()}


def tensors_of(layers: Mapping[str, Any], name: str = FIRST) -> dict[str, nn.Parameter]:
    """The parameters of what `inject` made, by the names of PEFT's files."""
    return {
        adapter_name(module, part): getattr(layer, f"lora_{part}")[name].weight
        for module, layer in layers.items()
        for part in ("A", "B")
    }


def select(model: nn.Module, name: str) -> None:
    """From now on `model` computes with this adapter and no other."""
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module._active_adapter = name


class Adapter:
    """The adapter of a model, whose weights are on the meta device until `fill`."""

    def __init__(
        self, model: PreTrainedModel, places: Mapping[str, str], spec: AdapterSpec, name: str
    ) -> None:
        """`places`: the modules in memory (`modules_in_memory`). `name`: of the adapter there."""
        self.spec, self._name, self._model = spec, name, model
        self._layers = layers = inject(model, places, spec, name)
        self.select()
        self._of = {f"{place}.weight": layers[module] for module, place in places.items()}

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """The parameters, by the names of PEFT's files."""
        return tensors_of(self._layers, self._name)

    def select(self, *, drops_out: bool = False) -> None:
        """From now on the model computes with this adapter and no other. `drops_out`: of its inputs some."""
        select(self._model, self._name)
        for layer in self._layers.values():
            layer.lora_dropout.train(drops_out)

    def fill(self) -> None:
        """The first values: those of `source`, or A of the seed and B of zeros."""
        source = read_adapter(Path(self.spec.source)) if self.spec.source else {}
        with torch.no_grad():
            for module, layer in self._layers.items():
                a, b = layer.lora_A[self._name].weight, layer.lora_B[self._name].weight
                drawn = first_a(self.spec, module, a.shape[1]), torch.zeros(b.shape)
                for target, value in zip((a, b), source.get(module, drawn), strict=True):
                    local(target).copy_(value[own_rows(target)])

    def merged(self, name: str, weight: Tensor, read: Read) -> Tensor:
        """The whole `weight` by this name in memory, with the adapter's product in it. Collective."""
        layer = self._of.get(name)
        if layer is None:
            return weight
        a, b = read(layer.lora_A[self._name].weight), read(layer.lora_B[self._name].weight)
        return with_product(weight, a, b, self.spec.scale)

    def published(self, read: Read) -> Iterator[tuple[str, Tensor]]:
        """What a publication of it alone carries. Collective."""
        return published_adapter(((name, read(one)) for name, one in self.tensors.items()), self.spec)

    @contextmanager
    def called(self) -> Iterator[None]:
        """ConfigError if forwards within never call one kind of the layers, as Mamba's `dt_proj`: the model
        reads their weights past the adapter.
        """
        kinds = {module: module.rpartition(".")[2] for module in self._layers}
        silent = set(kinds.values())
        hooks = [
            layer.register_forward_pre_hook(lambda *_, kind=kinds[module]: silent.discard(kind))
            for module, layer in self._layers.items()
        ]
        yield
        for hook in hooks:
            hook.remove()
        if silent:
            raise ConfigError(
                f"--lora.targets: found {min(silent)}, whose weight this model reads without calling the "
                "layer, so an adapter there would do nothing; name the targets without it."
            )

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within, the model computes without it."""
        for layer in self._layers.values():
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer._disable_adapters = False

    def held(self) -> list[Tensor]:
        """What this rank holds of the parameters."""
        return [local(one) for one in self.tensors.values()]
