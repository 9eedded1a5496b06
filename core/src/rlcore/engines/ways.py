"""The ways of new weights into an engine, by the names of `--engine.publish`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.engines.config import LocalConfig, SglangConfig

if TYPE_CHECKING:
    from rlcore.engines.publish import Publisher

MEGABYTE = 1_000_000


def publisher_of(config: LocalConfig | SglangConfig, root: Path, model_path: Path, dtype: str) -> Publisher:
    """What `config.publish` names. `root`: where versions lie; `model_path`: with config and tokenizer;
    `dtype`: the engine's."""
    from rlcore.engines.delta_publish import DeltaPublisher
    from rlcore.engines.publish import DiskPublisher, SharedMemoryPublisher, TensorPublisher

    match config.publish:
        case "shared_memory":
            return SharedMemoryPublisher(root=root, dtype=dtype)
        case "disk":
            return DiskPublisher(root=root, dtype=dtype, model_path=model_path)
        case "delta":
            return DeltaPublisher(root=root, dtype=dtype, model_path=model_path)
        case "tensor":
            assert isinstance(config, SglangConfig), "no other engine has this way"
            return TensorPublisher(root=root, dtype=dtype, bucket_bytes=config.bucket_mb * MEGABYTE)


def copies(publish: str) -> int:
    """Whole versions for which the folder of `publish` needs room."""
    from rlcore.engines.delta_publish import DELTA_COPIES
    from rlcore.engines.publish_file import KEPT_VERSIONS

    return DELTA_COPIES if publish == "delta" else KEPT_VERSIONS + 1
