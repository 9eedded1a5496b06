"""The bytes of the tensors that operations make."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlcore_fsdp.shards import local


class LiveBytes(TorchDispatchMode):
    """Within, counts the bytes of the storages that operations make, while there are tensors on them.

    FSDP2 gives up a storage's memory and takes it again: that counts too. Of a sharded tensor it is this
    rank's part that has memory.
    """

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        """`own`: tensors that are there before."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._storages: dict[int, Any] = {}
        self._resize: Any = None
        for tensor in own:
            self._count(local(tensor).untyped_storage())

    def __enter__(self) -> LiveBytes:
        """Begin."""
        resize = self._resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            self._count(storage)
            return result

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]  # until the end
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: Any) -> None:
        """End."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count what it gave."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not leaf.is_meta:
                self._count(local(leaf).untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._sizes:
            self._storages[place] = weakref.ref(storage, lambda _: self._forget(place))
            self._sizes[place] = 0
        self.now += size - self._sizes[place]
        self._sizes[place] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, place: int) -> None:
        del self._storages[place]
        self.now -= self._sizes.pop(place)
