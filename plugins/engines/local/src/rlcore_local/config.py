"""`--engine.*` of `local`."""

from typing import ClassVar, Literal

from pydantic import Field

from rlcore import EngineConfig
from rlcore_toolkit import SGLANG_ROUTERS


class LocalConfig(EngineConfig):
    """`--engine.*` of `local`: the small server over transformers."""

    preload: ClassVar[tuple[str, ...]] = ("rlcore_local.process",)
    routers = SGLANG_ROUTERS

    stop_grace_s: float = Field(
        default=0.0, ge=0, description="seconds from SIGTERM to SIGKILL at its end; 0: no SIGTERM reaches it"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="what the server computes on; auto: a GPU if there is one"
    )
    threads: int | None = Field(
        default=None, ge=1, description="threads that the server computes with; none: those of a train worker"
    )
    publish: Literal["shared_memory", "disk", "delta", "broadcast"] = Field(
        default="shared_memory",
        description="how new weights reach the server; shared_memory: in memory that the trainer shares; "
        "disk: as a directory; delta: as a file of what has changed; broadcast: by gloo",
    )
    bucket_mb: int = Field(
        default=256,
        ge=1,
        le=1024,
        description="megabytes of weights that travel at the same time, with shared_memory and broadcast",
    )
    broadcast_limit_s: float = Field(
        default=120.0,
        gt=0,
        description="seconds that trainer and server may take to meet for broadcasts, and for each bucket",
    )
    max_batch: int = Field(default=512, ge=1, description="sequences that are decoded together")
