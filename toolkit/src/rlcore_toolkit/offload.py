"""Move tensors from their device to host memory and back in place: how a trainer sleeps."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, UntypedStorage

from rlcore import SleepLevel

Kept = tuple[UntypedStorage, torch.device, Tensor]
"""An emptied storage, its device, and the copy of its bytes in host memory."""


class Offload:
    """Moves the storages of tensors to host memory and back.

    It empties a storage in place. Once refilled, all views of the storage are valid again: parameters that
    share one buffer, and an optimizer's shards of them. Until then nobody may read or write them. On a CPU it
    works in the same way, only that the copy is in the same memory.
    """

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._dropped: list[tuple[UntypedStorage, torch.device, int]] = []

    def move(self, tensors: Iterable[Tensor]) -> None:
        """Copy the storages of `tensors` to host memory, and free them.

        Those that are away already stay away.
        """
        storages = _storages(tensors)
        moved = [(storage, device, host_copy(_bytes(storage, device))) for storage, device in storages]
        _give_back(storage for storage, *_ in moved)
        self._kept += moved

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Free the storages without a copy; `restore` fills them with zeros.

        For gradients, which each step zeroes.
        """
        dropped = [(storage, device, storage.nbytes()) for storage, device in _storages(tensors)]
        _give_back(storage for storage, *_ in dropped)
        self._dropped += dropped

    @contextmanager
    def lent(self, tensors: Iterable[Tensor]) -> Iterator[bool]:
        """Within, those of `tensors` that moved away are back to be read; whether there are any."""
        places = {tensor.untyped_storage()._cdata for tensor in tensors}
        away = [kept for kept in self._kept if kept[0]._cdata in places]
        _refill(away)
        try:
            yield bool(away)
        finally:
            for storage, *_ in away:
                storage.resize_(0)

    @property
    def nbytes(self) -> int:
        """The bytes freed on the device."""
        kept = sum(copy.nbytes for *_, copy in self._kept)
        return kept + sum(size for *_, size in self._dropped)

    def restore(self) -> None:
        """Allocate the storages again, and fill them with what was in them."""
        _refill(self._kept)
        for storage, device, size in self._dropped:
            storage.resize_(size)
            _bytes(storage, device).zero_()
        self._kept, self._dropped = [], []


class ModelOffload:
    """What of a model has left its device, for a `rlcore.Sleeper`."""

    def __init__(self) -> None:
        self._optimizer, self._weights = Offload(), Offload()

    def sleep(
        self,
        what: SleepLevel,
        *,
        weights: Iterable[Tensor],
        states: Iterable[Tensor] = (),
        gradients: Iterable[Tensor] = (),
    ) -> int:
        """Move `states` to host memory, with `all` the `weights` too, and drop `gradients`.

        From `all` to another level the weights come back. Returns the bytes freed on the device so far.
        """
        self._optimizer.drop(gradients)
        self._optimizer.move(states)
        if what == "all":
            self._weights.move(weights)
        else:
            self._weights.restore()
        return self._optimizer.nbytes + self._weights.nbytes

    def lent(self, weights: Iterable[Tensor]) -> AbstractContextManager[bool]:
        """Within, these `weights` are there to be read; whether they sleep otherwise."""
        return self._weights.lent(weights)

    def wake(self) -> None:
        """Bring everything back; gradients are zeros."""
        self._weights.restore()
        self._optimizer.restore()


class HostWeights:
    """Weights in host memory that take the place of a model's for a while.

    They cost no device memory, host memory twice, and three copies over the host's link each time: the
    model's out, these in, the model's back.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """A copy of `tensors`."""
        self._values = [host_copy(tensor) for tensor in tensors]
        self._kept: list[Tensor] = []

    def take(self, tensors: Sequence[Tensor]) -> None:
        """Become a copy of `tensors`, in the same order."""
        _fill(self._values, tensors)

    @contextmanager
    def in_place_of(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Within, `tensors` have these values; afterwards their own again, bit by bit."""
        if self._kept:
            _fill(self._kept, tensors)
        else:  # pinned memory is slow to get, so it is kept
            self._kept = [host_copy(tensor) for tensor in tensors]
        _fill(tensors, self._values)
        try:
            yield
        finally:
            _fill(tensors, self._kept)


@torch.no_grad()
def _fill(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def host_copy(tensor: Tensor) -> Tensor:
    """A copy of `tensor` in host memory. It is pinned for a tensor of a GPU, which makes transfers faster."""
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor.detach())


def _storages(tensors: Iterable[Tensor]) -> list[tuple[UntypedStorage, torch.device]]:
    """The storages of `tensors`, each once, without empty ones."""
    storages: dict[int, tuple[UntypedStorage, torch.device]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            assert storage.resizable(), "mapped from a file: clone it first"
            storages[storage.data_ptr()] = storage, tensor.device
    return list(storages.values())


def _refill(emptied: Iterable[Kept]) -> None:
    for storage, device, copy in emptied:
        storage.resize_(copy.nbytes)
        _bytes(storage, device).copy_(copy, non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a pinned copy must outlive the transfer from it


def _bytes(storage: UntypedStorage, device: torch.device) -> Tensor:
    """The storage as a tensor, uint8 [n], which shares its memory."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _give_back(storages: Iterable[UntypedStorage]) -> None:
    """Empty the storages, and torch's cache too: another process needs the device's memory."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.synchronize()  # another stream may still read
    for storage in storages:
        storage.resize_(0)
    if has_gpu:
        torch.cuda.empty_cache()
