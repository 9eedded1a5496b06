"""A Hugging Face directory that a trainer writes: what lies beside the weights, and whether there is room."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from rlcore import CheckpointError

MAX_SHARD_BYTES = 5 * 1024**3
"""Of one file of weights."""

_CARRIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*processor_config.json",
)
"""What is copied beside the weights; config.json is too, with the dtype that was written."""


def carry_files(source: Path, work: Path, dtype: str, *, without: Collection[str] = ()) -> None:
    """Copy config (whose weights are now of `dtype`), tokenizer, chat template and generation config.

    `without`: names in the config of numbers of layers that are not written, which become 0.
    """
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the older name of `dtype`
    config.pop("quantization_config", None)  # what was quantized is written in full
    config |= {name: 0 for name in without if name in config}
    for table in (config, config.get("text_config", {})):
        table["dtype"] = dtype
    (work / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in _CARRIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, work / file.name)


def check_new(out: Path) -> None:
    """CheckpointError where `out` exists."""
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a directory that does not.")


def check_space(out: Path, need: int) -> None:
    """CheckpointError where the disk of `out` has fewer than `need` bytes free."""
    home = next(parent for parent in out.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(home).free
    if free < need:
        raise CheckpointError(
            f"{out}: needs {need / 1e9:.3g} GB, and {home} has {free / 1e9:.3g} GB free; free space or name "
            "a directory on another disk."
        )
