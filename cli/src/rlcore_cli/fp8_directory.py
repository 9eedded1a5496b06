"""A Hugging Face directory with full weights → the same model in FP8 blocks, as DeepSeek-V3 is published."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from rlcore.api.errors import CheckpointError
from rlcore.api.trainer import ConversionReport, ProgressCallback
from rlcore.checkpoint.folder import write_atomically
from rlcore.compose.models import read_config
from rlcore.engines.publish_file import copy_side_files
from rlcore.weights.checksums import checksum
from rlcore.weights.fp8_config import FP8_SCALE_SUFFIX, Fp8Block
from rlcore.weights.weights_check import INDEX, check_weights
from rlcore_toolkit import check_new, quantize_fp8

_SMALL = re.compile(r"(?<!\.eh)_proj(_with_mqa)?\.weight$")
"""The linear layers of attention, of MLPs and of experts. Embeddings, norms, routers, the output head, and
what joins the inputs of multi-token prediction, stay full."""


def to_fp8(source: Path, out: Path, block: Fp8Block, advance: ProgressCallback) -> ConversionReport:
    """Write the new directory `out`, which appears whole or not at all. One file at a time is in memory.

    `CheckpointError` where `out` exists, or `source` is quantized or has nothing to quantize; `ModelError`
    where `source` is damaged.
    """
    check_new(out)
    config = read_config(source, str(source))
    if "quantization_config" in config:
        raise CheckpointError(f"{source}: its weights are quantized already; expected full ones.")
    check_weights(source, shapes=False)
    files = sorted(source.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    report, nbytes = ConversionReport(), 0
    with write_atomically(out, marked=False) as folder:
        where: dict[str, str] = {}
        for file in files:
            tensors = _small(file, block)
            save_file(tensors, folder / file.name, metadata={"format": "pt"})
            where |= dict.fromkeys(tensors, file.name)
            report.tensors |= {name: checksum(tensor) for name, tensor in tensors.items()}
            report.files[file.name] = _described(folder / file.name)
            nbytes += sum(tensor.nbytes for tensor in tensors.values())
            advance(file.stat().st_size, total)
        if not any(name.endswith(FP8_SCALE_SUFFIX) for name in where):
            raise CheckpointError(f"{source}: none of its tensors is a projection, so none goes into FP8.")
        copy_side_files(source, folder)
        if len(files) > 1:
            _write(folder / INDEX, {"metadata": {"total_size": nbytes}, "weight_map": where})
        how = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": block,
        }
        whole = json.loads((source / "config.json").read_text())
        _write(folder / "config.json", {**whole, "quantization_config": how})
        report.write(folder)
    return report


def _small(file: Path, block: Fp8Block) -> dict[str, Any]:
    """The tensors of a file, its projections quantized, each beside its scales."""
    tensors: dict[str, Any] = {}
    with safe_open(file, framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118 - it is no mapping
            tensor = handle.get_tensor(name)
            if _SMALL.search(name) and tensor.ndim == 2:
                tensors[name], tensors[name + FP8_SCALE_SUFFIX] = quantize_fp8(tensor, block)
            else:
                tensors[name] = tensor
    return tensors


def _described(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
