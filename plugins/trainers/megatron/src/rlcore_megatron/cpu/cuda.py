"""What megatron-core and mbridge see as `torch.cuda` on a machine without a GPU.

The device is the CPU, there is one of it, streams and events are empty, and the device's random generator is
torch's default one. Names that are not here are those of the real `torch.cuda`.
"""

import contextlib
from collections.abc import Callable, Iterator
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


# --- the device --------------------------------------------------------------------------------------------


def current_device() -> torch.device:
    """Megatron only passes it on as `device=…`, so the device itself will do."""
    return _CPU


def device_count() -> int:
    return 1


def is_available() -> bool:
    return False


def is_initialized() -> bool:
    return True


def set_device(device: Any) -> None:
    pass


def synchronize(device: Any = None) -> None:
    pass


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Below every capability that a kernel asks for."""
    return (0, 0)


@contextlib.contextmanager
def device(_: Any) -> Iterator[None]:
    yield


def is_current_stream_capturing() -> bool:
    return False


# --- memory statistics: there is no separate device memory -----------------------------------------------


def empty_cache() -> None:
    pass


def ipc_collect() -> None:
    pass


def memory_allocated(device: Any = None) -> int:
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    return {}


def reset_peak_memory_stats(device: Any = None) -> None:
    pass


# --- streams: everything runs in order, so there is nothing to wait for -------------------------------------


class Event:
    """An event that has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class Stream:
    """A stream whose work is done when it is given."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True


_STREAM = Stream()


def current_stream(device: Any = None) -> Stream:
    return _STREAM


default_stream = current_stream


def set_stream(stream: Any) -> None:
    pass


def stream(_: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class nvtx:  # noqa: N801 - a module of torch.cuda
    """Profiler ranges, which need a driver."""

    @staticmethod
    def range_push(message: Any) -> int:
        return 0

    @staticmethod
    def range_pop() -> int:
        return 0


# --- random numbers: megatron's tracker forks and restores "the CUDA state" -------------------------------

default_generators = {_CPU: torch.default_generator}


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed() -> int:
    return torch.initial_seed()


class random:  # noqa: N801 - a module of torch.cuda
    """The same two functions, where megatron reaches for them through the submodule."""

    get_rng_state = staticmethod(get_rng_state)
    set_rng_state = staticmethod(set_rng_state)


def _lazy_call(function: Callable[[], None], **_: Any) -> None:
    """Nothing to initialize first."""
    function()


def _lazy_init() -> None:
    pass
