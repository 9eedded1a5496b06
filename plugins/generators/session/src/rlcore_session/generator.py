"""The generator `session`: an agent works, and what it asked the policy becomes samples."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace

from rlcore import (
    GenerationContext,
    GenerationStatus,
    RewardStatus,
    Sample,
    Score,
    Tokenizer,
)
from rlcore_session.agents import AgentError, AgentSession, find_agent
from rlcore_session.config import SessionConfig
from rlcore_session.server import SessionServer
from rlcore_session.session import AbortedError, Session
from rlcore_toolkit import compile_template

CANCEL_LIMIT_S = 30.0
"""Seconds that an agent has to end once it is told to."""

_log = logging.getLogger(__name__)


class SessionGenerator:
    """Gives each sample's agent an endpoint of its own, and takes down every token that goes through it."""

    def __init__(self, config: SessionConfig) -> None:
        """Raises `ConfigError` where the agent is not there, or the endpoint cannot be."""
        self._config = config
        self._agent = find_agent(config.agent, config.command, config.keep_environment)
        self._server = SessionServer(config.address, config.port, config.public_url)
        self._starting: asyncio.Task[None] | None = None
        self._places = asyncio.Semaphore(config.max_agents)
        self._logged_reasons: set[str] = set()

    async def generate(self, ctx: GenerationContext, sample: Sample) -> list[Sample]:
        """One sample for each stretch of tokens that grew without a break, the last one last.

        An agent that crashes, runs out of time, never asks, or owes its reward is one FAILED sample.
        """
        async with self._places:
            await self._started(ctx.tokenizer)
            session = Session(ctx, sample, max_turns=self._config.max_turns, how=self._config.tool_format)
            try:
                return await self._generated(session, ctx, sample)
            finally:
                session.close()

    async def close(self) -> None:
        """Stops the server."""
        await self._server.close()

    async def _started(self, tokenizer: Tokenizer) -> None:
        self._starting = self._starting or asyncio.create_task(self._start(tokenizer))
        await asyncio.shield(self._starting)

    async def _start(self, tokenizer: Tokenizer) -> None:
        compile_template(tokenizer)  # before all agents wait for the first request to end
        await self._server.start()

    async def _generated(self, session: Session, ctx: GenerationContext, sample: Sample) -> list[Sample]:
        try:
            status = await self._worked(session, ctx, sample)
        except AbortedError:
            aborted = GenerationStatus.ABORTED
            return self._ended(session, sample, aborted) or [replace(sample, status=aborted)]
        except AgentError as error:
            self._tell(sample, error)
            return [_failed(sample, error, _metrics(session))]
        return self._ended(session, sample, status)

    async def _worked(self, session: Session, ctx: GenerationContext, sample: Sample) -> GenerationStatus:
        """How the agent's work ended. What the engine raised is raised on."""
        with self._server.open(session, ctx) as token:
            handle = AgentSession(
                prompt=sample.prompt,
                openai_url=f"{self._server.url}/v1",
                anthropic_url=self._server.url,
                api_key=token,
                seed=sample.seed,
                report=session.report,
            )
            session.task = handle.task
            try:
                await self._until_failure(self._agent.work(handle), session)
            except AgentError:
                if not session.refused_for_length or session.last is None:
                    raise
                # It was told that there is no room, and gave up.
        if session.last is None:
            raise AgentError("no_answer", "The agent ended without an answer of the policy.")
        if self._config.reward == "agent" and session.reward is None:
            # The run's reward would judge the whole group in its place, and the siblings' reports be lost.
            why = ", when a request did not fit any more" if session.refused_for_length else ""
            raise AgentError("no_reward", f"The agent ended without the reward that it owes{why}.")
        cut = session.refused_for_length or session.last.finish == "length"
        return GenerationStatus.TRUNCATED if cut else GenerationStatus.COMPLETED

    async def _until_failure(self, work: Coroutine[None, None, None], session: Session) -> None:
        """The agent's work, unless the engine fails or the time is over before it ends."""
        agent = asyncio.ensure_future(work)
        failure = asyncio.ensure_future(session.failure())
        try:
            limit_s = self._config.timeout
            await asyncio.wait({agent, failure}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                failure.result()
            if not agent.done():
                why = f"The agent took longer than {limit_s:g} s (--generator.timeout)."
                raise AgentError("timed_out", why)
            agent.result()
        finally:
            for task in (agent, failure):
                task.cancel()
            await asyncio.wait({agent, failure}, timeout=CANCEL_LIMIT_S)

    def _ended(self, session: Session, sample: Sample, status: GenerationStatus) -> list[Sample]:
        text = session.answer
        if text is None:
            text = session.last.content if session.last is not None else ""
        samples = session.record.samples(replace(sample, metrics=_metrics(session)), status, text)
        if self._config.reward == "run" or session.reward is None:
            return samples
        score = Score(value=session.reward, parts=session.parts)
        return [replace(part, reward_status=RewardStatus.SCORED, score=score) for part in samples]

    def _tell(self, sample: Sample, error: AgentError) -> None:
        """The first failure of each kind is logged; metrics count the others."""
        if error.reason not in self._logged_reasons:
            self._logged_reasons.add(error.reason)
            _log.warning(
                "Prompt %r, sample %s: the agent %s: %s",
                sample.prompt.prompt_id,
                sample.rollout_id,
                error.reason.replace("_", " "),
                error.detail,
            )


def _metrics(session: Session) -> Mapping[str, float]:
    counts = {"turns": session.turns, "trajectories": len(session.record.branches)}
    return {**counts, "malformed_tool_calls": session.malformed_calls, "own_sampling": session.own_sampling}


def _failed(sample: Sample, error: AgentError, metrics: Mapping[str, float]) -> Sample:
    return replace(
        sample,
        status=GenerationStatus.FAILED,
        failure=error.reason,
        metrics=metrics,
        metadata={**sample.metadata, "agent_error": error.detail},
    )
