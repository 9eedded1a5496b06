"""The first vector function of a process is of one number."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore_machine import compute_threads


class Noted(TorchDispatchMode):
    """What torch computes, and of how many numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        done = func(*args, **(kwargs or {}))
        self.calls.append((func.overloadpacket.__name__, done.numel()))
        return done


def test_a_number_is_computed_before_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    monkeypatch.setattr(torch, "set_num_threads", lambda count: noted.calls.append(("threads", count)))
    with noted:
        compute_threads(2)
    assert noted.calls == [("ones", 1), ("cos", 1), ("threads", 2)]
