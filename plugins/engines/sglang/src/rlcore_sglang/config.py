"""`--engine.*` of `sglang`."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rlcore import EngineConfig, absolute_path


class SglangConfig(EngineConfig):
    """`--engine.*` of the real SGLang server. ServerArgs have their own table, `--sglang.<field>`."""

    table: ClassVar[str] = "sglang"
    fields_of: ClassVar[str] = "SGLang's ServerArgs"
    synonyms: ClassVar[Mapping[str, str]] = {"tp_size": "tp_size"}

    python: str | None = Field(
        default=None,
        description="The Python interpreter that has sglang installed; this one where not given.",
    )
    publish: Literal["disk", "delta", "tensor", "broadcast"] = Field(
        default="disk",
        description="How new weights reach the server: as a directory that it reads, as a file of what has "
        "changed from which that directory is made on its host, by value over HTTP, or from the trainer's "
        "memory by NCCL or gloo.",
    )
    bucket_mb: int = Field(
        default=256,
        ge=1,
        le=1024,
        description="Megabytes of weights in one request of the ways `tensor` and `broadcast`.",
    )
    broadcast_limit_s: float = Field(
        default=120.0,
        gt=0,
        description="Seconds that trainer and server may take to meet for broadcasts, and for each bucket.",
    )
    threads: int = Field(default=1, ge=1, description="Threads of each server process on a CPU.")
    start_limit_s: float = Field(
        default=600.0, gt=0, description="Seconds that the server may take until it answers."
    )
    stop_grace_s: float = Field(
        default=15.0, ge=0, description="Seconds that the server may take to end before it is killed."
    )

    @field_validator("python")
    @classmethod
    def _absolute(cls, python: str | None) -> str | None:
        """A name without a folder is looked up in PATH, as a shell does."""
        return absolute_path(python) if python and "/" in python else python
