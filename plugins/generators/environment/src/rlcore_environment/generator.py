"""Turns of the policy and an environment."""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlcore import (
    ConfigError,
    GenerationContext,
    GenerationStatus,
    Json,
    MissingPackageError,
    Sample,
)
from rlcore_environment.config import EnvironmentConfig, TurnsConfig
from rlcore_environment.protocol import TURNS, ClosableEnvironment, Environment, FinishingEnvironment, Step
from rlcore_environment.source import VERIFIERS
from rlcore_toolkit import ChatTrajectory, Trajectory, call_in_thread, load_object

ADAPTERS = {"gymnasium": "GymnasiumEnvironment", "textarena": "TextArenaEnvironment"}
PACKAGES = {"gymnasium": "gymnasium>=1.0", "textarena": "textarena>=0.7", "verifiers": VERIFIERS}
"""Package of a kind → what pip installs."""


def factory(config: EnvironmentConfig) -> Callable[[], Environment]:
    """What makes an environment for a sample.

    Raises `ConfigError` where the name leads to none, `MissingPackageError` where its package is missing. Of
    a package's environments one is made to see.
    """
    if config.kind == "class":
        made = _own(config.environment)
        return lambda: made(**config.options)
    if config.kind == "openenv":
        from rlcore_environment.adapters import openenv

        server = openenv.find_server(config.environment, config.options)
        return lambda: openenv.OpenEnvEnvironment(server)
    if importlib.util.find_spec(config.kind) is None:
        raise MissingPackageError(
            f"--generator.kind {config.kind}: its package is not installed; "
            f'pip install "{PACKAGES[config.kind]}".'
        )
    if config.kind == "verifiers":
        from rlcore_environment.adapters import verifiers

        loaded = verifiers.load(config.environment, config.options)  # holds the data set: one for all samples
        return lambda: verifiers.VerifiersEnvironment(config.environment, config.options, loaded)
    module = importlib.import_module(f"rlcore_environment.adapters.{config.kind}")
    adapter: Callable[..., Environment] = getattr(module, ADAPTERS[config.kind])
    adapter(config.environment, config.options)
    return lambda: adapter(config.environment, config.options)


def _own(name: str) -> Callable[..., Environment]:
    constructor = load_object(name, "--generator.environment")
    for method in ("reset", "step"):
        if not callable(getattr(constructor, method, None)):
            raise ConfigError(f"--generator.environment {name}: has no {method}(), expected an environment.")
    made: Callable[..., Environment] = constructor
    return made


T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)


class FailedError(Exception):
    """The environment did; the message is the sample's `failure`."""


@dataclass
class Episode:
    """What has happened so far."""

    turns: list[tuple[int, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    text: str = ""

    def add(self, end: int, step: Step) -> None:
        """A turn whose last token is at `end`."""
        self.turns.append((end, float(step.reward)))
        self._count(step)

    def amend(self, step: Step) -> None:
        """What came after the last turn counts as its."""
        end, reward = self.turns[-1]
        self.turns[-1] = end, reward + float(step.reward)
        self._count(step)

    def _count(self, step: Step) -> None:
        for name, value in step.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value


class EpisodeGenerator:
    """One environment for each sample; observations are masked, and nothing is tokenised twice."""

    def __init__(self, config: TurnsConfig, make: Callable[[], Environment], name: str) -> None:
        """`make`: an environment for a sample. `name`: of the kind, for messages."""
        self._config = config
        self._make = make
        self._name = name
        self._logged: set[str] = set()
        limit = config.max_environments
        self._places = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One episode. A crash or a time-out of the environment is a failed sample."""
        async with self._places:
            return await self._episode(ctx, sample)

    async def _episode(self, ctx: GenerationContext, sample: Sample) -> Sample:
        environment: Environment | None = None
        try:
            environment = await self._limited(call_in_thread(self._make), self._config.reset_timeout, "reset")
            return await self._play(ctx, sample, environment)
        except FailedError as failed:
            return replace(sample, status=GenerationStatus.FAILED, failure=str(failed))
        finally:
            if isinstance(environment, ClosableEnvironment):
                await self._close(environment)

    async def _play(self, ctx: GenerationContext, sample: Sample, environment: Environment) -> Sample:
        first = await self._limited(environment.reset(sample), self._config.reset_timeout, "reset")
        if isinstance(sample.prompt.text, str):
            trajectory = Trajectory(ctx, sample)
            fits = not first or self._write(ctx, trajectory, first)
        else:
            trajectory = ChatTrajectory(ctx, sample, [_user(first)] if first else [])
            fits = True
        if not fits or trajectory.room <= 0:
            raise FailedError("no_room")
        episode = Episode()
        while trajectory.turns < self._config.max_turns and trajectory.room:
            done = await trajectory.answer(self._config.max_turn_tokens)
            episode.text = done.text
            if done.finish_reason == "abort":
                return _ended(trajectory, episode, GenerationStatus.ABORTED)
            step = await self._limited(environment.step(done.text), self._config.step_timeout, "step")
            episode.add(trajectory.length - 1, step)
            if step.done:
                cut = step.truncated or (done.finish_reason == "length" and not trajectory.room)
                status = GenerationStatus.TRUNCATED if cut else GenerationStatus.COMPLETED
                return _ended(trajectory, episode, status)
            if isinstance(trajectory, ChatTrajectory):
                fits = trajectory.go_on(done, [_user(step.observation)])
            else:
                fits = self._write(ctx, trajectory, step.observation)
            if not fits:
                break
        if isinstance(environment, FinishingEnvironment) and episode.turns:
            episode.amend(await self._limited(environment.finish(), self._config.step_timeout, "step"))
        return _ended(trajectory, episode, GenerationStatus.TRUNCATED)

    def _write(self, ctx: GenerationContext, trajectory: Trajectory, observation: str) -> bool:
        """Add an observation to a text; False: there is no room for it."""
        return trajectory.observe(ctx.encode(self._config.observation.replace("{observation}", observation)))

    async def _limited(self, awaitable: Awaitable[T], limit: float, what: str) -> T:
        """`awaitable` within `limit` seconds; what goes wrong is a `FailedError`, and a log line once."""
        try:
            async with asyncio.timeout(limit):
                return await awaitable
        except TimeoutError as error:
            self._report(f"its {what} took longer than {limit:g} s")
            raise FailedError(f"environment_{what}_timed_out") from error
        except Exception as error:
            self._report(f"its {what} raised {type(error).__name__}: {error}")
            raise FailedError("environment_crashed") from error

    def _report(self, said: str) -> None:
        if said not in self._logged and len(self._logged) < 100:
            self._logged.add(said)
            _log.warning("The environment %r failed: %s.", self._name, said)

    async def _close(self, environment: ClosableEnvironment) -> None:
        """A fault of the end is told, and costs nothing: the episode is over."""
        with contextlib.suppress(FailedError):
            await self._limited(environment.close(), CLOSE_TIMEOUT_S, "close")


class EnvironmentGenerator(EpisodeGenerator):
    """The environment that the settings name."""

    def __init__(self, config: EnvironmentConfig) -> None:
        """Raises `ConfigError` or `MissingPackageError` where they lead to none."""
        super().__init__(config, factory(config), config.environment)


def _user(content: str) -> dict[str, Json]:
    return {"role": "user", "content": content}


def _ended(trajectory: Trajectory, episode: Episode, status: GenerationStatus) -> Sample:
    metrics = {**episode.metrics, "turns": float(len(episode.turns))}
    metadata = {TURNS: [list(turn) for turn in episode.turns]}
    return trajectory.end(status, episode.text, metrics=metrics, metadata=metadata)
