"""The trained weights under their Hugging Face names: as a stream, or as a directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from rlcore.errors import CheckpointError, RlcoreError
from rlcore.megatron.build import Built
from rlcore.megatron.transfer import held

CARRIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
"""What is copied beside the weights; config.json is too, with the dtype that was written."""

MTP_LAYERS = "num_nextn_predict_layers"
"""In config.json: layers for multi-token prediction, which the trainer leaves out."""

MAX_SHARD_BYTES = 5 * 1024**3


def hf_tensors(built: Built) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight of the model, on every rank, in the same order everywhere.

    All ranks must take part, to the end. A tensor is whole: gathered over tensor- and pipeline-parallel
    ranks, without the padding of the vocabulary, detached, in the parameters' dtype and on their device. It
    may share memory with the parameters: copy it before the next optimizer step. A tied output layer does
    not come, as in Hugging Face's own files.
    """
    return built.bridge.export(built.chunks, held)


def save_hf(
    built: Built, source_dir: str | Path, out_dir: str | Path, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write `out_dir`, which must not exist, as a directory that `transformers` loads. All ranks take part.

    Rank 0 writes safetensors of at most `max_shard_bytes` each (a larger tensor is a file of its own) and
    carries the config and tokenizer of `source_dir` along. The directory appears whole or not at all;
    CheckpointError, on every rank, where it cannot be written.
    """
    error: str | None = None
    tensors = hf_tensors(built)
    if dist.get_rank() == 0:
        try:
            _write(tensors, Path(source_dir), Path(out_dir), max_shard_bytes)
        except (OSError, RlcoreError) as failure:
            error = f"{out_dir} cannot be written: {failure}."
    for _ in tensors:  # the other ranks, and rank 0 after a failure: nobody is left waiting in a collective
        pass
    answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if answer[0] is not None:
        raise CheckpointError(answer[0])


def _write(tensors: Iterator[tuple[str, Tensor]], source: Path, out: Path, limit: int) -> None:
    if out.exists():
        raise CheckpointError("it exists already")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        dtype = _write_shards(tensors, work, limit)
        carry(source, work, dtype)
        work.chmod(0o755)
        os.replace(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_shards(tensors: Iterator[tuple[str, Tensor]], work: Path, limit: int) -> str:
    """Write the weights and, for more than one file, their index; returns the dtype's name."""
    shards: list[list[str]] = []
    total, dtype = 0, ""
    for shard in _shards(tensors, limit):
        _save(shard, work / _shard_name(len(shards)))
        shards.append(list(shard))
        total += sum(tensor.nbytes for tensor in shard.values())
        dtype = str(next(iter(shard.values())).dtype).removeprefix("torch.")
    if len(shards) == 1:
        os.replace(work / _shard_name(0), work / "model.safetensors")
        return dtype
    where = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        os.replace(work / _shard_name(number), work / file)
        where.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (work / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return dtype


def _shards(tensors: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = {}, 0
        # a view of a fused parameter would take the whole of it along
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.nbytes
    if shard:
        yield shard


def _save(shard: dict[str, Tensor], file: Path) -> None:
    save_file(shard, file, metadata={"format": "pt"})
    # safetensors makes its files private to the user
    file.chmod(0o644)


def _shard_name(number: int) -> str:
    """Until the number of shards is known."""
    return f"shard-{number}"


def carry(source: Path, work: Path, dtype: str) -> None:
    """Copy config (whose weights are now of `dtype`), tokenizer, chat template and generation config."""
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the older name of `dtype`
    config.pop("quantization_config", None)  # what was quantized is written in full
    if MTP_LAYERS in config:
        config[MTP_LAYERS] = 0  # the model here has none
    config["dtype"] = dtype
    (work / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in CARRIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, work / file.name)
