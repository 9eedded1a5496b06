"""The ways of new weights that several engines have, by the names of `--engine.publish`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore_toolkit.planning.units import MB

if TYPE_CHECKING:  # it imports torch, which takes longer than a plan
    from rlcore import Publisher


def publisher_of(
    publish: str,
    root: Path,
    model_path: Path,
    dtype: str,
    *,
    bucket_mb: int,
    limit_s: float,
    on_gpu: bool,
    checks: bool = True,
) -> Publisher:
    """The one that `publish` names: disk, delta, shared_memory or broadcast.

    `root`: where versions lie. `model_path`: the directory with config and tokenizer. `dtype`, `on_gpu`: the
    engine's. `bucket_mb`: size of a bucket, for ways that stream. `limit_s`: time limit of a broadcast.
    `checks`: the engine tells the checksums of its tensors.
    """
    from rlcore_toolkit.publishers.broadcast import BroadcastPublisher
    from rlcore_toolkit.publishers.delta_publisher import DeltaPublisher
    from rlcore_toolkit.publishers.file_publisher import DiskPublisher
    from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

    match publish:
        case "shared_memory":
            return SharedMemoryPublisher(root=root, dtype=dtype, bucket_bytes=bucket_mb * MB)
        case "disk":
            return DiskPublisher(root=root, dtype=dtype, model_path=model_path)
        case "delta":
            return DeltaPublisher(root=root, dtype=dtype, model_path=model_path)
    assert publish == "broadcast", publish
    return BroadcastPublisher(
        root=root,
        dtype=dtype,
        bucket_bytes=bucket_mb * MB,
        backend="nccl" if on_gpu else "gloo",
        limit_s=limit_s,
        checks=checks,
    )


def cross_host_ways(offered: Sequence[str], *, spanning: bool) -> list[str]:
    """The ways of `offered` that reach an engine on another host. `spanning`: an engine on several hosts.

    Only `broadcast` does, for an engine on one host: its group listens where the trainer reaches the engine's
    first host, and perhaps no other.
    """
    return [way for way in offered if way == "broadcast" and not spanning]


def publisher_room(publish: str, size: int, *, bucket_mb: int) -> int:
    """The most bytes that the folder of `publish` holds, for weights of `size` bytes."""
    from rlcore_toolkit.publishers.delta_publisher import DELTA_COPIES
    from rlcore_toolkit.publishers.version import disk_room

    match publish:
        case "disk":
            return disk_room(size)
        case "delta":
            return DELTA_COPIES * size
    return min(size, bucket_mb * MB)  # a way that streams holds one bucket
