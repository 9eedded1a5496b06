"""The files of an adapter as PEFT has them, and a model with an adapter merged in."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore import (
    ADAPTER_CONFIG,
    AdapterSpec,
    ConversionReport,
    ModelError,
    parse_json,
    torch_dtype,
)
from rlcore_toolkit.hf_directory import MAX_SHARD_BYTES
from rlcore_toolkit.lora import linear_modules, with_product
from rlcore_toolkit.safetensors_files import SafetensorsFiles
from rlcore_toolkit.safetensors_stream import TensorEntry, write_directory

ADAPTER_FILE = "adapter_model.safetensors"
_PREFIX, _WEIGHT = "base_model.model.", ".weight"
_UNKNOWN = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "target_parameters",
)
"""What an adapter of PEFT may have, and no trainer of rlcore has."""


def adapter_name(module: str, part: str) -> str:
    """PEFT's name of a tensor; `part`: "A" or "B"."""
    return f"{_PREFIX}{module}.lora_{part}{_WEIGHT}"


def adapter_place(name: str) -> tuple[str, str]:
    """The module and the part, "A" or "B", of an `adapter_name`; two empty texts for another name."""
    match = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight", name)
    return (match[1], match[2]) if match else ("", "")


def published_adapter(
    tensors: Iterable[tuple[str, Tensor]], spec: AdapterSpec
) -> Iterator[tuple[str, Tensor]]:
    """What a publication of the adapter alone carries: A and scale · B, by `adapter_name`."""
    for name, tensor in tensors:
        is_b = adapter_place(name)[1] == "B"
        yield name, tensor.detach() * spec.scale if is_b else tensor.detach()


def write_adapter(folder: Path, spec: AdapterSpec, base: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write PEFT's two files into `folder`. `tensors`: by `adapter_name`; `base`: the model's directory."""
    adapted = {adapter_place(name)[0] for name in tensors}
    ends = {module.rpartition(".")[2] for module in adapted}
    by_end = {module for module in linear_modules(base) if module.rpartition(".")[2] in ends}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": spec.dropout,
        "use_rslora": spec.rslora,
        # Engines expect the ends of names, which may stand for too many.
        "target_modules": sorted(ends if by_end == adapted else adapted),
        "bias": "none",
        "inference_mode": True,
    }
    values = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(values, folder / ADAPTER_FILE, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def read_adapter(folder: Path) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Module → A and B of a directory of PEFT. ModelError where it cannot be read."""
    try:
        tensors = load_file(folder / ADAPTER_FILE)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / ADAPTER_FILE}: cannot be read as safetensors ({error}).") from error
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, part = adapter_place(name)
        pairs.setdefault(module, {})[part] = tensor
    whole = [pair for pair in pairs.values() if pair.keys() == {"A", "B"}]
    if not pairs or len(whole) < len(pairs) or "" in pairs:
        raise ModelError(
            f"{folder / ADAPTER_FILE}: expected lora_A and lora_B of each module, and nothing else."
        )
    return {module: (pair["A"], pair["B"]) for module, pair in pairs.items()}


def write_merged(
    base: Path,
    adapter: Path,
    out: Path,
    dtype: str,
    advance: Callable[[int, int], None],
    limit: int = MAX_SHARD_BYTES,
    base_weight: Callable[[str, Tensor], Tensor] | None = None,
) -> ConversionReport:
    """Write the new directory `out`: the model in `base` with the adapter in `adapter`, as `dtype` ("bf16").

    One tensor at a time, in files of at most `limit` bytes. `base_weight`: from a name and its tensor in
    `base` to the weight that the adapter stands beside. CheckpointError as in `rlcore.Trainer.to_hf`.
    """
    spec, pairs = read_adapter_config(adapter), read_adapter(adapter)
    files = SafetensorsFiles.of(base)
    entries = [TensorEntry(name, files.shape(name), torch_dtype(dtype)) for name in files.names]

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name in (entry.name for entry in entries):
            weight = files.full(name) if base_weight is None else base_weight(name, files.full(name))
            a, b = pairs.get(name.removesuffix(_WEIGHT), (None, None))
            whole = weight if a is None or b is None else with_product(weight.float(), a, b, spec.scale)
            yield name, whole.to(torch_dtype(dtype))

    return write_directory(base, out, entries, tensors(), dtype, advance, limit=limit)


def read_adapter_config(folder: Path) -> AdapterSpec:
    """What the config of a directory of PEFT says. ModelError."""
    try:
        config: Mapping[str, Any] = parse_json((folder / ADAPTER_CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: cannot be read ({error}).") from error
    if config.get("peft_type") != "LORA" or not isinstance(config.get("r"), int):
        raise ModelError(f"{folder / ADAPTER_CONFIG}: expected the config of a LoRA adapter.")
    extra = [name for name in _UNKNOWN if config.get(name)]
    if config.get("bias", "none") != "none":
        extra.append("bias")
    if extra:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: {extra[0]} is not supported.")
    return AdapterSpec(
        rank=config["r"],
        alpha=float(config["lora_alpha"]),
        dropout=float(config.get("lora_dropout", 0.0)),
        rslora=bool(config.get("use_rslora")),
    )
