"""Tensors that leave their device for host memory, and come back in place: how a trainer sleeps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage


class Offload:
    """Moves the storages of tensors to host memory and back.

    A storage is emptied where it is, so that every view of it is good again once it is filled: parameters
    that are views of one buffer, as well as a shard that an optimizer has of them. Until then nobody may
    read or write one of them. On a CPU the copy lies in the same memory, and the rest is alike.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[UntypedStorage, torch.device, Tensor]] = []
        self._dropped: list[tuple[UntypedStorage, torch.device, int]] = []

    def move(self, tensors: Iterable[Tensor]) -> None:
        """Keep a copy of what `tensors` lie in, and give the memory back. What is away already stays so."""
        moved = [(storage, device, _on_host(storage, device)) for storage, device in _storages(tensors)]
        _give_back(storage for storage, *_ in moved)
        self._kept += moved

    def drop(self, tensors: Iterable[Tensor]) -> None:
        """Give the memory back without a copy: `restore` fills it with zeros. Every step does so itself."""
        dropped = [(storage, device, storage.nbytes()) for storage, device in _storages(tensors)]
        _give_back(storage for storage, *_ in dropped)
        self._dropped += dropped

    @property
    def nbytes(self) -> int:
        """What was given back of the device's memory."""
        kept = sum(copy.nbytes for *_, copy in self._kept)
        return kept + sum(size for *_, size in self._dropped)

    def restore(self) -> None:
        """Take the memory again, with what was in it to the last bit."""
        for storage, device, copy in self._kept:
            storage.resize_(copy.nbytes)
            _bytes(storage, device).copy_(copy, non_blocking=True)
        for storage, device, size in self._dropped:
            storage.resize_(size)
            _bytes(storage, device).zero_()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a pinned copy must outlive the transfer from it
        self._kept, self._dropped = [], []


def host_copy(tensor: Tensor) -> Tensor:
    """`tensor` in host memory, pinned where it comes from a GPU: both ways are faster then."""
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor.detach())


def _storages(tensors: Iterable[Tensor]) -> list[tuple[UntypedStorage, torch.device]]:
    """What `tensors` lie in, each once, but for what is empty."""
    found: dict[int, tuple[UntypedStorage, torch.device]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            assert storage.resizable(), "mapped from a file: clone it first"
            found[storage.data_ptr()] = storage, tensor.device
    return list(found.values())


def _bytes(storage: UntypedStorage, device: torch.device) -> Tensor:
    """uint8 [n], over the storage itself."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _on_host(storage: UntypedStorage, device: torch.device) -> Tensor:
    return host_copy(_bytes(storage, device))


def _give_back(storages: Iterable[UntypedStorage]) -> None:
    """To the driver too, where torch keeps what is freed: another process wants it."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.synchronize()  # another stream may still read
    for storage in storages:
        storage.resize_(0)
    if has_gpu:
        torch.cuda.empty_cache()
