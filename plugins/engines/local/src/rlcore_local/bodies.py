"""The bodies of the control endpoints; SGLang's fields that mean nothing here are accepted and say so."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rlcore_local.weights import SharedTensor


class Body(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UpdateBody(Body):
    """What every update takes. A null `weight_version` keeps the present one."""

    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class DiskBody(UpdateBody):
    """`/update_weights_from_disk`."""

    model_path: Path


class SharedBody(UpdateBody):
    """`/update_weights_from_shared_memory`. `path`: relative to the weights directory, or inside it."""

    path: str
    layout: list[SharedTensor] = Field(min_length=1)


class DeltaBody(UpdateBody):
    """`/update_weights_from_delta`. `path`: relative to the weights directory, or inside it."""

    path: str


class AbortBody(Body):
    """`/abort_request`. `rid`: of a request (all its samples) or of one sample."""

    rid: str | None = None
    abort_all: bool = False


class PauseBody(Body):
    """`/pause_generation`."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueBody(Body):
    """`/continue_generation`. `torch_empty_cache` concerns GPU memory only."""

    torch_empty_cache: bool = True


class CheckBody(Body):
    """`/weights_checker`."""

    action: Literal["checksum"] = "checksum"


class SelectorBody(Body):
    """`/begin_weight_update`, `/end_weight_update`. There is one model, which every `selector` means."""

    selector: Literal["target", "draft", "all"] = "all"


class MemoryBody(Body):
    """`/release_memory_occupation`, `/resume_memory_occupation`. Weights in host memory stay there."""

    tags: list[Literal["weights", "kv_cache", "cuda_graph"]] | None = None

    @property
    def parts(self) -> frozenset[str]:
        """Those of `tags` that the server has."""
        parts = {"weights", "kv_cache"}
        return frozenset(parts if self.tags is None else parts.intersection(self.tags))
