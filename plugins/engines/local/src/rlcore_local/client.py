"""`LocalClient`: the client that sends the requests of a session as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from rlcore import Completion, EngineClient, Sampling
from rlcore_local.joint_requests import GENERATE, JointRequests
from rlcore_machine import end_tasks


class LocalClient(EngineClient):
    """A session of requests counts as one of those that are under way at once."""

    def __init__(self, url: str, token: str | None, **options: Any) -> None:
        super().__init__(url, token, **options)
        self._sessions: dict[str, JointRequests] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Fails those that wait for others of their session, too."""
        for session in self._sessions.values():
            session.close()
        await end_tasks(self._tasks)
        await super().close()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int = 1,
        seed: int | None = None,
        rid: str | None = None,
        session: str | None = None,
        routing_key: str | None = None,
    ) -> list[Completion]:
        """As `EngineClient.generate`. None of the N requests of a session is sent before all have come.

        They begin together, in the order of their `rid`: their answers are bit-equal in every run. One that
        waits for the others is not sent yet, and so not ended by `abort`.
        """
        if session is None:
            return await super().generate(
                input_ids, sampling, n=n, seed=seed, rid=rid, routing_key=routing_key
            )
        joint = self._joint(session)
        try:
            body, rid = await self._generate_body(input_ids, sampling, n, seed, rid)
        except BaseException:  # the others of the session wait for this request
            joint.leave()
            self._forget(joint)
            raise
        return await self._completions(rid, body, self._joined(joint, body), prompt_tokens=len(input_ids))

    def _joint(self, name: str) -> JointRequests:
        """The session of that name that still takes requests."""
        session = self._sessions.get(name)
        if session is None or not session.takes_more:
            session = self._sessions[name] = JointRequests(
                self.url,
                name,
                partial(self._http.lines, GENERATE, timeout_s=self._timeout_s),
                timeout_s=self._timeout_s,
                slots=self._slots,
                abort=self._end,
                spawn=self._spawn,
            )
        return session

    async def _joined(self, session: JointRequests, body: Mapping[str, Any]) -> list[Any]:
        """Like `_answered`, for a request that is sent together with others."""
        member = session.join(body)
        try:
            return await session.answers(member)
        finally:
            self._forget(session)

    def _forget(self, session: JointRequests) -> None:
        """Forget the session, unless requests are still to come."""
        if not session.takes_more and self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that lives no longer than this client."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
