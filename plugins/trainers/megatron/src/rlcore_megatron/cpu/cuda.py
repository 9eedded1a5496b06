"""What megatron-core and mbridge see as `torch.cuda` on a machine without a GPU.

The device is the CPU, there is one of it, streams and events are empty, and the device's random generator is
torch's default one. Names that are not here are those of the real `torch.cuda`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

_CPU = torch.device("cpu")

FloatTensor, HalfTensor, BFloat16Tensor = torch.FloatTensor, torch.HalfTensor, torch.BFloat16Tensor
DoubleTensor, IntTensor, LongTensor = torch.DoubleTensor, torch.IntTensor, torch.LongTensor


def __getattr__(name: str) -> Any:
    return getattr(torch.cuda, name)


def move(x: Any, *_: Any, **__: Any) -> Any:
    """`x.cuda(…)`: a tensor or module is where it belongs already."""
    return x


def _nothing(*_: Any, **__: Any) -> None:
    """There is one device, without memory of its own, and everything runs in order: nothing is to be done."""


# --- the device --------------------------------------------------------------------------------------------

device = nullcontext
set_device = synchronize = _lazy_init = _nothing


def current_device() -> torch.device:
    """Megatron only passes it on as `device=…`, so the device itself will do."""
    return _CPU


def device_count() -> int:
    return 1


def is_available() -> bool:
    return False


def is_initialized() -> bool:
    return True


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Below every capability that a kernel asks for."""
    return (0, 0)


def is_current_stream_capturing() -> bool:
    return False


# --- memory statistics -------------------------------------------------------------------------------------

empty_cache = ipc_collect = reset_peak_memory_stats = _nothing


def memory_allocated(device: Any = None) -> int:
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    return {}


# --- streams -----------------------------------------------------------------------------------------------


class Event:
    """An event that has always happened."""

    __init__ = record = wait = synchronize = _nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class Stream:
    """A stream whose work is done when it is given."""

    __init__ = wait_stream = wait_event = synchronize = _nothing

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True


_STREAM: Stream = Stream()


def current_stream(device: Any = None) -> Stream:
    return _STREAM


default_stream = current_stream
set_stream, stream = _nothing, nullcontext


class nvtx:  # noqa: N801 - a module of torch.cuda
    """Profiler ranges, which need a driver."""

    range_push = range_pop = staticmethod(_nothing)


# --- random numbers: megatron's tracker forks and restores "the CUDA state" -------------------------------

default_generators = {_CPU: torch.default_generator}
manual_seed = manual_seed_all = torch.manual_seed
initial_seed = torch.initial_seed


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


class random:  # noqa: N801 - a module of torch.cuda
    """The same two functions, where megatron reaches for them through the submodule."""

    get_rng_state = staticmethod(get_rng_state)
    set_rng_state = staticmethod(set_rng_state)


def _lazy_call(function: Callable[[], None], **_: Any) -> None:
    """Nothing to initialize first."""
    function()
