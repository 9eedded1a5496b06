"""Gymnasium's environments, where observations and actions can be said in words."""

import re
from collections.abc import Mapping
from typing import Any

from rlcore import ConfigError, Json, Sample
from rlcore_environment.protocol import Step
from rlcore_toolkit import call_in_thread


class GymnasiumEnvironment:
    """`gymnasium.make(name, **options)`: texts as they are, numbers as digits.

    Actions: a `Text` space takes the answer, stripped; a `Discrete` space the first integer in it. An answer
    without a possible action is told so, costs nothing and changes nothing. The seed is the row's
    `metadata["seed"]`, else the sample's.
    """

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        """Raises `ConfigError` where nothing has that name, or its actions cannot be said in words."""
        import gymnasium

        try:
            self._env: Any = gymnasium.make(name, **options)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            said = " ".join(str(error).split())
            raise ConfigError(f"--generator.environment {name}: gymnasium cannot make it: {said}") from error
        self._actions: Any = self._env.action_space
        if not isinstance(self._actions, gymnasium.spaces.Text | gymnasium.spaces.Discrete):
            raise ConfigError(
                f"--generator.environment {name}: its actions are {self._actions}, expected Text or Discrete."
            )
        self._is_text = isinstance(self._actions, gymnasium.spaces.Text)

    async def reset(self, sample: Sample) -> str:
        """The first observation."""
        seed = int(sample.prompt.metadata.get("seed", sample.seed))
        observation, _ = await call_in_thread(lambda: self._env.reset(seed=seed))
        return str(observation)

    async def step(self, text: str) -> Step:
        """The answer as an action."""
        action = text.strip() if self._is_text else self._number(text)
        if action is None:
            low, count = int(self._actions.start), int(self._actions.n)
            said = f"No action: expected a number from {low} to {low + count - 1}."
            return Step(observation=said, metrics={"invalid_actions": 1.0})
        observation, reward, terminated, truncated, _ = await call_in_thread(lambda: self._env.step(action))
        return Step(
            observation=str(observation),
            reward=float(reward),
            done=bool(terminated or truncated),
            truncated=bool(truncated and not terminated),
        )

    async def close(self) -> None:
        """Close it."""
        await call_in_thread(self._env.close)

    def _number(self, text: str) -> int | None:
        match = re.search(r"-?\d+", text)
        return int(match[0]) if match and self._actions.contains(int(match[0])) else None
