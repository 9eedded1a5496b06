"""`LocalClient`: the client that sends the requests of a session as one."""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from rlcore import Completion, EngineClient, Request
from rlcore_local.joint_requests import ADAPTER, GENERATE, JointRequests
from rlcore_machine import end_tasks


class LocalClient(EngineClient):
    """A session of requests counts as one of those that are under way at once."""

    def __init__(self, url: str, token: str | None, **options: Any) -> None:
        super().__init__(url, token, **options)
        self._sessions: dict[str, JointRequests] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Fails those that wait for others of their session, too."""
        for joint in self._sessions.values():
            joint.close()
        await end_tasks(self._tasks)
        await super().close()

    async def server_info(self) -> Mapping[str, Any]:
        """Like `EngineClient.server_info`; EngineError where the server is no `local`."""
        return await self._answer("/server_info", "capabilities")

    async def _policy(self, name: str) -> Mapping[str, str]:
        return {ADAPTER: name} if name else {}

    async def generate(self, request: Request) -> list[Completion]:
        """Like `EngineClient.generate`, but no request of a session is sent before all have come.

        They begin together, in the order of their `rid`: their answers are bit-equal in every run. One that
        waits for the others is not sent yet, and so not ended by `abort`.
        """
        if request.session is None:
            return await super().generate(request)
        joint = self._joint(request.session)
        try:
            body = await self._generate_body(request)
        except BaseException:  # the others of the session wait for this request
            joint.leave()
            self._forget(joint)
            raise
        return await self._completions(request, body, self._joined(joint, body))

    def _joint(self, name: str) -> JointRequests:
        """The session of that name that still takes requests."""
        joint = self._sessions.get(name)
        if joint is None or not joint.takes_more:
            joint = self._sessions[name] = JointRequests(
                url=self.url,
                name=name,
                lines=partial(self._http.lines, GENERATE, timeout_s=self._timeout_s),
                timeout_s=self._timeout_s,
                slots=self._slots,
                abort=self._end,
                spawn=self._spawn,
            )
        return joint

    async def _joined(self, joint: JointRequests, body: Mapping[str, Any]) -> list[Any]:
        """Like `_answered`, for a request that is sent together with others."""
        member = joint.join(body)
        try:
            return await joint.answers(member)
        finally:
            self._forget(joint)

    def _forget(self, joint: JointRequests) -> None:
        """Forget the session, unless requests are still to come."""
        if not joint.takes_more and self._sessions.get(joint.name) is joint:
            del self._sessions[joint.name]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that lives no longer than this client."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
