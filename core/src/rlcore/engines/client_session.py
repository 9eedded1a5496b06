"""`Session`: generation requests that begin together, sent as one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.engines.client_http import Http, RefusedError, UnreachableError
from rlcore.errors import EngineError

GENERATE = "/generate"
SESSION_HEADER = "X-Rlcore-Session"
LINES = {"Accept": "application/x-ndjson"}
"""Asks `local` for a line for each prompt of a batch, as soon as its samples have ended."""


@dataclass(frozen=True, eq=False)
class Member:
    """The body of one request, and its answers to be."""

    body: Mapping[str, Any]
    answers: asyncio.Future[list[Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def n(self) -> int:
        """Its samples."""
        n: int = self.body["sampling_params"]["n"]
        return n


class Session:
    """The requests of the session "NAME/N" to a `local` server.

    When the last of the N has come they go out as one batch (one for each `n`, which a batch has in common),
    and each has its answers as soon as its own samples have ended. Where a batch is refused, its requests go
    out one by one, so that the refusal is of those that deserve it. What nobody waits for is given up.
    """

    def __init__(self, http: Http, session: str, *, timeout_s: float) -> None:
        self._http = http
        self._name, _, size = session.rpartition("/")
        self._size = int(size)
        self._timeout_s = timeout_s
        self._members: list[Member] = []
        self._sending: asyncio.Task[None] | None = None

    @property
    def takes_more(self) -> bool:
        """Whether requests are still to come, and somebody waits for them."""
        return len(self._members) < self._size and not self._is_left

    @property
    def _is_left(self) -> bool:
        return all(one.answers.done() for one in self._members)

    def join(self, body: Mapping[str, Any]) -> Member:
        """Add a request; the last one sends them all. `answers` must follow."""
        member = Member(body)
        self._members.append(member)
        if len(self._members) == self._size:
            self._sending = asyncio.create_task(self._send())
            self._sending.add_done_callback(self._sent)
        return member

    async def answers(self, member: Member) -> list[Any]:
        """Those to the samples of one request. Raises EngineError."""
        try:
            return await asyncio.wait_for(member.answers, self._timeout_s)
        except TimeoutError as error:
            raise UnreachableError(
                f"The engine at {self._http.url} did not answer {GENERATE} within {self._timeout_s:g} s."
            ) from error
        finally:
            if member.answers.cancelled() and self._sending is not None and self._is_left:
                self._sending.cancel()

    async def _send(self) -> None:
        batches: dict[int, list[Member]] = {}
        for one in self._members:
            batches.setdefault(one.n, []).append(one)
        await self._begin(list(batches.values()), self._name)

    def _sent(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        _fail(self._members, error or UnreachableError(f"The engine at {self._http.url} left a request."))

    async def _begin(self, batches: Sequence[Sequence[Member]], name: str) -> None:
        """Send batches that are to begin together."""
        headers = {SESSION_HEADER: f"{name}/{len(batches)}"}
        async with asyncio.TaskGroup() as tasks:
            for members in batches:
                tasks.create_task(self._post(members, headers))

    async def _post(self, members: Sequence[Member], headers: Mapping[str, str]) -> None:
        """Send one batch and hand the answers out, or the error."""
        try:
            if len(members) > 1:
                await self._post_many(members, headers)
                return
            answer = await self._http.post(
                GENERATE, members[0].body, timeout_s=self._timeout_s, headers=headers
            )
            _settle(members[0], answer if isinstance(answer, list) else [answer])
        except RefusedError as error:
            if len(members) > 1 and error.status < 500:
                await self._begin([[one] for one in members], f"{self._name}.{members[0].n}")
            else:
                _fail(members, error)
        except EngineError as error:
            _fail(members, error)

    async def _post_many(self, members: Sequence[Member], headers: Mapping[str, str]) -> None:
        differing = ("input_ids", "rid", "sampling_params")
        body = {**members[0].body, **{name: [one.body[name] for one in members] for name in differing}}
        headers = {**headers, **LINES}
        async for line in self._http.lines(GENERATE, body, timeout_s=self._timeout_s, headers=headers):
            _settle(members[line["index"]], line["answers"])


def _settle(member: Member, answers: list[Any]) -> None:
    if not member.answers.done():
        member.answers.set_result(answers)


def _fail(members: Sequence[Member], error: BaseException) -> None:
    for one in members:
        if not one.answers.done():
            one.answers.set_exception(error)
