"""The trained weights under their Hugging Face names, and what lies beside them in a directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from rlcore_megatron.config import OF_MTP
from rlcore_megatron.mcore.build import Built
from rlcore_megatron.mcore.transfer import held

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


def hf_tensors(built: Built) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight of the model, on every rank, in the same order everywhere.

    All ranks must take part, to the end. A tensor is whole: gathered over tensor- and pipeline-parallel
    ranks, without the padding of the vocabulary, detached, in the parameters' dtype and on their device. It
    may share memory with the parameters: copy it before the next optimizer step. A tied output layer does
    not come, as in Hugging Face's own files.
    """
    return built.bridge.export(built.chunks, held)


def carry(source: Path, work: Path, dtype: str, *, mtp: bool = False) -> None:
    """Copy config (whose weights are now of `dtype`), tokenizer, chat template and generation config.

    `mtp`: the weights of a layer for multi-token prediction are there.
    """
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the older name of `dtype`
    config.pop("quantization_config", None)  # what was quantized is written in full
    if OF_MTP in config and not mtp:
        config[OF_MTP] = 0
    config["dtype"] = dtype
    (work / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in CARRIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, work / file.name)
