"""The ways of new weights into an engine, by the names of `--engine.publish`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from rlcore.engines.config import LocalConfig, SglangConfig
    from rlcore.engines.publish import Publisher

MEGABYTE = 1_000_000


def publisher_of(
    config: LocalConfig | SglangConfig, root: Path, model_path: Path, dtype: str, *, on_gpu: bool
) -> Publisher:
    """What `config.publish` names.

    `root`: where versions lie; `model_path`: with config and tokenizer; `dtype`, `on_gpu`: of the engine.
    """
    from rlcore.engines.broadcast import BroadcastPublisher
    from rlcore.engines.delta_publish import DeltaPublisher
    from rlcore.engines.publish import DiskPublisher, SharedMemoryPublisher, TensorPublisher

    bucket_bytes = config.bucket_mb * MEGABYTE
    match config.publish:
        case "shared_memory":
            return SharedMemoryPublisher(root=root, dtype=dtype)
        case "disk":
            return DiskPublisher(root=root, dtype=dtype, model_path=model_path)
        case "delta":
            return DeltaPublisher(root=root, dtype=dtype, model_path=model_path)
        case "tensor":
            return TensorPublisher(root=root, dtype=dtype, bucket_bytes=bucket_bytes)
        case "broadcast":
            limit_s = config.broadcast_limit_s
            backend = "nccl" if on_gpu else "gloo"
            return BroadcastPublisher(
                root=root, dtype=dtype, bucket_bytes=bucket_bytes, backend=backend, limit_s=limit_s
            )


def far_ways(config: LocalConfig | SglangConfig, *, spanning: bool) -> list[str]:
    """Those of the engine that reach it on another host; `spanning`: on several.

    That is by value (`tensor`), or by a group of trainer and engine (`broadcast`), which listens where the
    trainer reaches the engine's first host, and perhaps no other.
    """
    offered = get_args(type(config).model_fields["publish"].annotation)
    return [way for way in offered if way == "tensor" or (way == "broadcast" and not spanning)]


def copies(publish: str) -> int:
    """Whole versions for which the folder of `publish` needs room."""
    from rlcore.engines.delta_publish import DELTA_COPIES
    from rlcore.engines.publish_file import KEPT_VERSIONS

    return DELTA_COPIES if publish == "delta" else KEPT_VERSIONS + 1
