"""TextArena's games for one player."""

from collections.abc import Mapping
from typing import Any

from rlcore import ConfigError, Json, Sample
from rlcore_environment.protocol import Step
from rlcore_toolkit import call_in_thread


class TextArenaEnvironment:
    """`textarena.make(name, **options)` with one player; the reward comes with the end.

    The games draw from Python's global generator, which a reset seeds: games under way at the same time share
    it, so that runs with chance in the middle of a game do not repeat.
    """

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        """Raises `ConfigError` where no game has that name."""
        import textarena

        try:
            self._env: Any = textarena.make(name, **options)
        except (ValueError, TypeError, ImportError) as error:
            raise ConfigError(f"--generator.environment {name}: textarena cannot make it: {error}") from error

    async def reset(self, sample: Sample) -> str:
        """The rules and the first position."""
        seed = int(sample.prompt.metadata.get("seed", sample.seed))

        def work() -> str:
            self._env.reset(num_players=1, seed=seed)
            return self._observation()

        return await call_in_thread(work)

    async def step(self, text: str) -> Step:
        """The answer as a move."""

        def work() -> Step:
            done, _ = self._env.step(action=text)
            if not done:
                return Step(observation=self._observation())
            rewards, info = self._env.close()
            invalid = bool(info[0].get("invalid_move"))
            return Step(reward=float(rewards[0]), done=True, metrics={"invalid_move": float(invalid)})

        return await call_in_thread(work)

    def _observation(self) -> str:
        _, observation = self._env.get_observation()
        if isinstance(observation, str):
            return observation
        return "\n".join(str(message) for _, message, *_ in observation)
