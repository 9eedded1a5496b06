"""The part of a parameter that a rank holds: FSDP2 shards the first dimension."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of `tensor`, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`, detached. Collective where it is sharded."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def own_rows(tensor: Tensor) -> slice:
    """The entries of the first dimension that this rank holds: those of torch.chunk."""
    if not isinstance(tensor, DTensor):
        return slice(None)
    ranks, number, size = tensor.device_mesh.size(), tensor.device_mesh.get_local_rank(), tensor.shape[0]
    each = -(-size // ranks)
    return slice(min(number * each, size), min((number + 1) * each, size))
