"""Adapters beside the model that a server loaded: which ones SGLang computes, and what it must be told.

Read in SGLang 0.5.12 and 0.5.23 (`sglang.srt.lora`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore import AdapterSpec, ConfigError, Overlay

PATHS, STRICT = "lora_paths", "lora_strict_loading"
POLICY = "policy"
"""What servers call the adapter that was published last."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The last part of the names of modules whose adapters SGLang computes as the trainer does."""
JOINED: Mapping[str, tuple[str, ...]] = {
    "q_proj": ("v_proj",),
    "k_proj": ("q_proj", "v_proj"),
    "v_proj": ("q_proj",),
    "up_proj": ("gate_proj",),
}
"""Module → those of the same layer that must have an adapter too. SGLang makes one matrix of them, and drops
what comes without the others, or ends."""
PADS = 32
"""On a CPU, SGLang pads an MLP's width to a multiple of this for each rank, and not that of its adapter."""


def by_policy(overlays: Mapping[str, Overlay]) -> dict[str, AdapterSpec]:
    """The adapters of `EngineLaunch.overlays`; SGLang adds no other overlay to a model."""
    adapters = {name: one for name, one in overlays.items() if isinstance(one, AdapterSpec)}
    assert len(adapters) == len(overlays), "of trainers that make adapters"
    return adapters


def adapter_fields(
    adapters: Sequence[AdapterSpec],
    model_path: str,
    fields: Mapping[str, Any],
    *,
    on_gpu: bool,
    shares_gpu: bool,
) -> dict[str, Any]:
    """ServerArgs of a server that gets `adapters`, and has those of the user's `fields` from its start.

    A batch holds these, and the base, which SGLang's own health check asks.
    """
    others = [_read(folder) for folder in named_adapters(fields).values()]
    modules = {module for adapter in adapters for module in _modules(adapter, model_path)}
    modules |= {module for _, shapes in others for module in shapes}
    return {
        "enable_lora": True,
        "max_lora_rank": max(spec.rank for spec in (*adapters, *(spec for spec, _ in others))),
        "lora_target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "max_loras_per_batch": 1 + len(adapters) + len(others),
        STRICT: True,
        **({} if on_gpu else {"lora_backend": "torch_native"}),
        # a publication does not bring back the base, which the server drops while the trainer works
        **({"enable_weights_cpu_backup": True} if shares_gpu else {}),
    }


def check_adapters(
    adapter: AdapterSpec, model_path: str, fields: Mapping[str, Any], *, ranks: int, on_gpu: bool
) -> None:
    """ConfigError where SGLang would compute `adapter`, or one of the user's `fields`, in another way.

    `ranks`: those that divide a layer. ModelError where one of the user's cannot be read.
    """
    from rlcore_toolkit import linear_modules  # it imports torch, which takes longer than a plan

    shapes = linear_modules(Path(model_path))
    modules = _modules(adapter, model_path)
    for complaint in _complaints(modules, shapes, ranks, on_gpu=on_gpu):
        raise ConfigError(
            f"--lora.publish: found adapter, but {complaint}; take merged, or other --lora.targets."
        )
    for name, folder in named_adapters(fields).items():
        spec, found = _read(folder)
        at = f"--sglang.lora-paths: found {name}={folder}"
        if spec.rslora:
            raise ConfigError(
                f"{at}, but SGLang multiplies its product by alpha / rank, not by alpha / √rank."
            )
        if wrong := [module for module, shape in found.items() if shapes.get(module) != shape]:
            raise ConfigError(f"{at}, but it is of another model: --model has no such {wrong[0]}.")
        for complaint in _complaints(found, shapes, ranks, on_gpu=on_gpu):
            raise ConfigError(f"{at}, but {complaint}; leave it out.")


def named_adapters(fields: Mapping[str, Any]) -> dict[str, Path]:
    """Name → directory of the adapters in `fields`, the user's. ConfigError where one has no name."""
    given = {name.replace("-", "_"): value for name, value in fields.items()}.get(PATHS, ())
    named = {}
    for item in given.split(",") if isinstance(given, str) else given:
        name, _, folder = item.partition("=")
        if not name or not folder or name == POLICY:
            raise ConfigError(
                f"--sglang.lora-paths: found {item!r}, expected NAME=DIR; {POLICY!r} is the run's own."
            )
        named[name] = Path(folder)
    return named


def _complaints(
    modules: Collection[str], shapes: Mapping[str, tuple[int, int]], ranks: int, *, on_gpu: bool
) -> Iterator[str]:
    for module in modules:
        layer, _, end = module.rpartition(".")
        if end not in TARGETS:
            yield f"of {module} SGLang has no adapter; it has of {', '.join(TARGETS)}"
        if ".experts." in module and not on_gpu:
            yield f"adapters of experts ({module}) are for SGLang on a GPU"
        if lacking := [name for name in JOINED.get(end, ()) if f"{layer}.{name}" not in modules]:
            yield f"SGLang takes an adapter of {module} only beside one of {' and '.join(lacking)}"
        width = shapes[module][1]
        if end == "down_proj" and not on_gpu and ranks > 1 and width % (PADS * ranks):
            yield (
                f"SGLang on a CPU pads the {width} inputs of {module} to a multiple of {PADS * ranks} for "
                f"--sglang.tp-size {ranks}"
            )


def _modules(adapter: AdapterSpec, model_path: str) -> Collection[str]:
    from rlcore_toolkit import adapted_modules

    return adapted_modules(Path(model_path), adapter).keys()


def _read(folder: Path) -> tuple[AdapterSpec, Mapping[str, tuple[int, int]]]:
    """What an adapter's config says, and the outputs and inputs of its modules. ModelError."""
    from rlcore_toolkit import read_adapter, read_adapter_config

    pairs = read_adapter(folder)
    return read_adapter_config(folder), {module: (b.shape[0], a.shape[1]) for module, (a, b) in pairs.items()}
