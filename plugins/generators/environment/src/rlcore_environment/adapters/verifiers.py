"""Environments of `verifiers` 0.1 to 0.3: their own rollout runs, and asks the policy by this adapter."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlcore import ConfigError, Json, Sample
from rlcore_environment.protocol import Step


class VerifiersEnvironment:
    """`verifiers.load_environment(name, **options)`; the rubric's reward comes with the end.

    A row is the prompt's messages, its label (`answer`) and `metadata` (`info`, `example_id`). The
    environment's rollout is a task that waits for each answer; what it adds to the chat is the observation.
    """

    def __init__(self, name: str, options: Mapping[str, Json], environment: Any = None) -> None:
        """`environment`: one that is loaded already. Raises `ConfigError` where there is none."""
        self._env = load(name, options) if environment is None else environment
        self._asked: asyncio.Queue[Sequence[Any] | None] = asyncio.Queue()
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._seen = 0

    async def reset(self, sample: Sample) -> str:
        """Begin the rollout; what it asks beyond the prompt is the observation."""
        prompt, metadata = sample.prompt, sample.prompt.metadata
        messages = [{"role": "user", "content": prompt.text}] if isinstance(prompt.text, str) else prompt.text
        row = {
            "prompt": [dict(message) for message in messages],
            "answer": "" if prompt.label is None else str(prompt.label),
            "info": metadata.get("info") or {},
            "example_id": metadata.get("example_id", sample.group_id),
            **({"task": metadata["task"]} if "task" in metadata else {}),
        }
        self._seen = len(messages)
        self._task = asyncio.ensure_future(self._rollout(row))
        observation, done = await self._next()
        if done is not None:
            raise RuntimeError("the environment ended before the policy said anything")
        return observation

    async def step(self, text: str) -> Step:
        """The policy's answer goes to the rollout."""
        self._seen += 1
        self._answers.put_nowait(text)
        observation, state = await self._next()
        if state is None:
            return Step(observation=observation)
        if state.get("error") is not None:
            raise RuntimeError(f"the environment failed: {state['error']!r}")
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        return Step(
            reward=float(state["reward"]),
            done=True,
            truncated=state.get("stop_condition") == "max_turns_reached" and self._env.max_turns != 1,
            metrics=metrics,
        )

    async def close(self) -> None:
        """End the rollout."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # `step` has told of it
                await self._task

    async def ask(self, prompt: Sequence[Any]) -> Any:
        """For the environment: the policy's answer to `prompt`, as a response of verifiers."""
        from verifiers.types import Response, ResponseMessage

        self._asked.put_nowait(prompt)
        text = await self._answers.get()
        message = ResponseMessage(content=text, finish_reason="stop", is_truncated=False)
        return Response(id="rlcore", created=int(time.time()), model="policy", message=message)

    async def _rollout(self, row: dict[str, Any]) -> Any:
        try:
            state = await self._env.rollout(row, bridge(self), "policy", {})
            await self._env.rubric.score_rollout(state)
            return state
        finally:
            self._asked.put_nowait(None)

    async def _next(self) -> tuple[str, Any]:
        """(observation, None) for the policy, ("", state) at the end; raises what the rollout did."""
        assert self._task is not None
        prompt = await self._asked.get()
        if prompt is None:
            return "", await self._task
        new, self._seen = prompt[self._seen :], len(prompt)
        return "\n".join(_text(message) for message in new), None


def load(name: str, options: Mapping[str, Json]) -> Any:
    """The environment. Raises `ConfigError` where it cannot be loaded."""
    import verifiers

    try:
        make = verifiers.load_environment
    except AttributeError as error:
        raise ConfigError(
            f"--generator.kind verifiers: found verifiers {verifiers.__version__}, which loads no "
            f'environment ({error}); pip install "verifiers>=0.1.14,<0.4".'
        ) from error
    try:
        with _kept_signals():
            return make(name, **options)
    except Exception as error:  # an environment is a package of its own, with faults of its own
        said = " ".join(str(error).split())
        raise ConfigError(f"--generator.environment {name}: verifiers cannot load it: {said}") from error


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """An environment takes SIGINT and SIGTERM for itself; they are the run's, which ends its environments."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:  # then it is not Python's
                signal.signal(number, handler)


def bridge(adapter: VerifiersEnvironment) -> Any:
    """A client of verifiers that asks `adapter`."""
    from verifiers.clients import Client

    class Bridge(Client):  # type: ignore[misc] # a class without types
        async def get_response(self, prompt: Any, *args: Any, **options: Any) -> Any:
            return await adapter.ask(prompt)

    Bridge.__abstractmethods__ = frozenset()  # only what an environment calls is needed
    return Bridge(None)


def _text(message: Any) -> str:
    content = message["content"] if isinstance(message, Mapping) else message.content
    return content if isinstance(content, str) else str(content)
