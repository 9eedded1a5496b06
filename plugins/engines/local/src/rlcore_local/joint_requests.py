"""`JointRequests`: generation requests that begin together, sent as one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlcore import EngineError, RefusedError, UnreachableError

GENERATE, ADAPTER = "/generate", "lora_path"


@dataclass(frozen=True, eq=False)
class JointMember:
    """The body of one request, and its answers to be."""

    body: Mapping[str, Any]
    answers: asyncio.Future[list[Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(eq=False, kw_only=True)
class JointRequests:
    """The requests of the session "NAME/N" to one server.

    When the last of the N has come they go out as one, in the order of their rid, and each has its answers as
    soon as its own samples have ended. What nobody waits for any more is not sent, or is aborted. A request
    whose sampling the server cannot read is refused with all of them.

    `url`: of the server; `lines`: what it answers to a body, line by line. `slots`: the one request takes
    one. `abort`: ends a request by its rid. `spawn`: makes a task, which the end of the client cancels.
    Raises EngineError where `name` is not that of a session.
    """

    url: str
    name: str
    lines: Callable[[Mapping[str, Any]], AsyncGenerator[Any, None]]
    timeout_s: float
    slots: asyncio.Semaphore
    abort: Callable[[str], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

    def __post_init__(self) -> None:
        prefix, _, size = self.name.rpartition("/")
        if not prefix or not size.isdecimal() or int(size) < 1:
            raise EngineError(
                f"A session is called {self.name!r}, expected NAME/N with a number of requests."
            )
        self._size = int(size)
        self._members: list[JointMember] = []
        self._sending: asyncio.Task[None] | None = None

    @property
    def takes_more(self) -> bool:
        """Whether requests are still to come, and somebody waits for them."""
        return len(self._members) < self._size and not self._is_left

    @property
    def _is_left(self) -> bool:
        return bool(self._members) and all(member.answers.done() for member in self._members)

    def join(self, body: Mapping[str, Any]) -> JointMember:
        """Add a request; the last one sends them all. `answers` must follow."""
        member = JointMember(body)
        self._members.append(member)
        self._send_if_all_came()
        return member

    def leave(self) -> None:
        """One of the requests will not be made."""
        self._size -= 1
        self._send_if_all_came()

    def _send_if_all_came(self) -> None:
        if self._members and len(self._members) == self._size:
            self._sending = self.spawn(self._send())
            self._sending.add_done_callback(self._sent)

    async def answers(self, member: JointMember) -> list[Any]:
        """The answers to the samples of one request. Raises EngineError."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await member.answers
        except TimeoutError as error:
            raise UnreachableError(
                f"The engine at {self.url} did not answer {GENERATE} within {self.timeout_s:g} s."
            ) from error
        finally:
            if member.answers.cancelled() and self._sending is not None:
                self._give_up(self._sending, member)

    def close(self) -> None:
        """Nobody needs to wait for the others any more."""
        self._fail(UnreachableError(f"The client of the engine at {self.url} was closed."))

    def _give_up(self, sending: asyncio.Task[None], member: JointMember) -> None:
        """Nobody waits for `member`: the server is told, or the connection is cut with the last one."""
        if self._is_left:
            sending.cancel()
        elif not sending.done():
            self.spawn(self._end(member))

    async def _end(self, member: JointMember) -> None:
        with contextlib.suppress(EngineError):
            await self.abort(member.body["rid"])

    async def _send(self) -> None:
        async with self.slots:
            awaited = (member for member in self._members if not member.answers.done())
            # By id, not by arrival: the engine then computes the same batch in every run.
            members = sorted(awaited, key=lambda member: str(member.body["rid"]))
            if not members:
                return
            names = ["input_ids", "rid", "sampling_params"]
            if any(ADAPTER in member.body for member in members):
                names.append(ADAPTER)
            differing = {name: [member.body.get(name, "") for member in members] for name in names}
            lines = self.lines({**members[0].body, **differing})
            async with contextlib.aclosing(lines):
                async for line in lines:
                    self._settle(members[line["index"]], line)

    def _settle(self, member: JointMember, line: Mapping[str, Any]) -> None:
        if member.answers.done():
            return
        if "error" in line:
            sentence = f"The engine at {self.url} refused {GENERATE}: {line['error']['message']}"
            member.answers.set_exception(RefusedError(sentence, 400))
        else:
            member.answers.set_result(line["answers"])

    def _sent(self, task: asyncio.Task[None]) -> None:
        """Fail the requests that got no answer."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, EngineError):
            error = EngineError(f"The requests to the engine at {self.url} failed: {error!r}.")
        self._fail(error or UnreachableError(f"The engine at {self.url} left a request unanswered."))

    def _fail(self, error: BaseException) -> None:
        for member in self._members:
            if not member.answers.done():
                member.answers.set_exception(error)
