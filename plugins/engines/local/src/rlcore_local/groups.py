"""Weights that a trainer broadcasts: the groups, and the bodies of the endpoints that use them."""

from collections.abc import Callable
from typing import Annotated, Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rlcore import EngineError
from rlcore_local.bodies import Body, UpdateBody
from rlcore_local.requests import RequestError
from rlcore_local.weights import DTYPES
from rlcore_toolkit import BroadcastGroup, call_in_thread

T = TypeVar("T")
LIMIT_S = 600.0
"""For the trainer to come, and for each bucket; the trainer has a shorter one."""


class JoinBody(Body):
    """`/init_weights_update_group`: this server is rank `rank_offset`.

    By gloo, also on a GPU: NCCL would not let the trainer's rank share it.
    """

    master_address: str
    master_port: int = Field(ge=1, le=65535)
    rank_offset: int = Field(ge=1)
    world_size: int = Field(ge=2)
    group_name: str = Field("weight_update_group", min_length=1)
    backend: Literal["gloo"]


class LeaveBody(Body):
    """`/destroy_weights_update_group`."""

    group_name: str = "weight_update_group"


class ReceiveBody(UpdateBody):
    """`/update_weights_from_distributed`: one tensor of bytes, of those named one after the other."""

    names: list[str] = Field(min_length=1)
    dtypes: list[Literal["float32", "bfloat16", "float16", "float8_e4m3fn"]]
    shapes: list[list[Annotated[int, Field(ge=0)]]]
    group_name: str = "weight_update_group"
    load_format: Literal["flattened_bucket"]

    @model_validator(mode="after")
    def _are_as_many(self) -> Self:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise ValueError("names, dtypes and shapes must be equally many")
        return self


class Groups:
    """The groups that this server is in, by name."""

    def __init__(self) -> None:
        self._groups: dict[str, BroadcastGroup] = {}

    async def join(self, body: JoinBody) -> None:
        """Meet the trainer. `RequestError` where it does not come."""
        if body.group_name in self._groups:
            raise RequestError(f"group_name: {body.group_name!r} is a group already")

        def meet() -> BroadcastGroup:
            return BroadcastGroup(
                body.group_name,
                body.master_address,
                body.master_port,
                rank=body.rank_offset,
                size=body.world_size,
                backend=body.backend,
                limit_s=LIMIT_S,
            )

        self._groups[body.group_name] = await _in_thread(meet)

    def leave(self, body: LeaveBody) -> None:
        """Forget a group."""
        if self._groups.pop(body.group_name, None) is None:
            raise RequestError(f"group_name: {body.group_name!r} is no group")

    async def receive(self, body: ReceiveBody) -> dict[str, Tensor]:
        """What the trainer broadcasts. `RequestError` where it does not."""
        if body.group_name not in self._groups:
            raise RequestError(f"group_name: {body.group_name!r} is no group")
        group = self._groups[body.group_name]
        dtypes = [DTYPES[name] for name in body.dtypes]
        sizes = [
            dtype.itemsize * torch.Size(shape).numel()
            for dtype, shape in zip(dtypes, body.shapes, strict=True)
        ]
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        await _in_thread(lambda: group.broadcast(received))
        # A view of another dtype must begin at a multiple of its size: the copy does.
        parts = [part.clone() for part in received.split(sizes)]
        return {
            name: part.view(dtype).reshape(shape)
            for name, part, dtype, shape in zip(body.names, parts, dtypes, body.shapes, strict=True)
        }


async def _in_thread(work: Callable[[], T]) -> T:
    """`work()` in a thread, so that the server answers meanwhile."""
    try:
        return await call_in_thread(work)
    except EngineError as error:
        raise RequestError(str(error)) from error
