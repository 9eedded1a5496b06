"""What the suite of clusters has in the processes that it starts."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, NoReturn

from rlcore.api.cluster import ACTOR_THREADS, Actor, CallFailed
from rlcore.api.errors import EngineError


class Counter:
    """Counts, waits, fails and ends as it is told to."""

    def __init__(self, count: int = 0) -> None:
        """EngineError if `count` is negative."""
        if count < 0:
            raise EngineError("It cannot count from below zero.")
        self._count = count
        self._calls: list[int] = []
        self._released = threading.Event()
        self._meeting = threading.Barrier(ACTOR_THREADS["broadcast"])

    def add(self, amount: int) -> int:
        """The sum so far."""
        self._count += amount
        return self._count

    def add_elsewhere(self, other: Actor, amount: int, limit_s: float) -> int:
        """The answer of another actor's `add`."""
        answer: int = other.ask("add", amount, limit_s=limit_s)
        return answer

    def wait_elsewhere(self, other: Actor, wait_s: float, limit_s: float) -> str:
        """The answer of another actor's `wait(wait_s)`, asked within `limit_s`, or the error."""
        try:
            return f"the answer {other.ask('wait', wait_s, limit_s=limit_s)}"
        except CallFailed as error:
            return f"CallFailed: {error}"
        except Exception as error:
            return f"{type(error).__name__}, not as CallFailed"

    def record(self, number: int) -> list[int]:
        """The numbers of this and all calls before it."""
        self._calls.append(number)
        return list(self._calls)

    def wait(self, limit_s: float) -> bool:
        """Until `release`; whether it came in time."""
        return self._released.wait(limit_s)

    def release(self) -> None:
        """End `wait`."""
        self._released.set()

    def meet(self, limit_s: float) -> None:
        """Returns once as many calls are here as the thread `broadcast` takes at a time."""
        self._meeting.wait(limit_s)

    def length(self, content: bytes) -> int:
        """The length of what it is given."""
        return len(content)

    def place(self) -> tuple[str, int]:
        """The name of its host, and its process id."""
        return socket.gethostname(), os.getpid()

    def gpus(self) -> str | None:
        """Those that it sees."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def refuse(self) -> NoReturn:
        """An error of rlcore's."""
        raise EngineError("Refused.")

    def fail(self) -> NoReturn:
        """Another error."""
        raise ValueError("too odd")

    def give_what_cannot_travel(self) -> Any:
        """A function without a name cannot be pickled by name."""
        return threading.Lock()

    def end(self, code: int) -> NoReturn:
        """End the process."""
        os._exit(code)
