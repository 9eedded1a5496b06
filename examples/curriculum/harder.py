"""A task that grows with the policy: numbers to copy get one digit longer as soon as they are easy."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from rlcore import CheckpointError, Config, Cursor, Json, Prompt, Prompts, Source, hookimpl

HELD_OUT = 64


class HarderConfig(Config):
    """Settings of the task, `--source.*`."""

    most_digits: int = Field(6, ge=1, le=9, description="the longest number to copy")
    easy_at: float = Field(0.8, gt=0, le=1, description="share of right answers that makes a length easy")
    window: int = Field(64, ge=1, description="groups that this share is taken over")


def copying(number: int, digits: int, kind: str = "train") -> Prompt:
    """A prompt of its own for each `number`: seeds follow from its id."""
    name = f"{kind}-{digits}-{number}"
    text = "".join(random.Random(name).choices("0123456789", k=digits))
    return Prompt(prompt_id=name, text=f"{text}=", label=text)


class Harder:
    """The source: what is checked before the run, what is evaluated, and the cursor."""

    def __init__(self, config: HarderConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """The shortest numbers to begin with; the held-out set has the longest."""
        most = self._config.most_digits
        return Prompts(
            train=[copying(number, 1) for number in range(8)],
            held_out={"longest": [copying(number, most, "eval") for number in range(HELD_OUT)]},
        )

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> Cursor:
        """Draws numbers of the present length."""
        return HarderCursor(self._config)


class HarderCursor:
    """Draws new numbers of a length that grows. Its state is in every checkpoint."""

    def __init__(self, config: HarderConfig) -> None:
        self._config = config
        self._digits, self._taken = 1, 0
        self._recent: list[float] = []

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts. There is one endless epoch."""
        numbers = range(self._taken, self._taken + n)
        self._taken += n
        return [(copying(number, self._digits), 0) for number in numbers]

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """Count the right answers, of groups of the present length alone."""
        if prompt_id.split("-")[1] != str(self._digits):
            return
        right = sum(reward >= 1 for reward in rewards) / len(rewards)
        self._recent = [*self._recent, right][-self._config.window :]
        is_easy = sum(self._recent) >= self._config.easy_at * self._config.window
        if is_easy and self._digits < self._config.most_digits:
            self._digits += 1
            self._recent = []

    def metrics(self) -> dict[str, float]:
        """`rollout/digits`: the present length."""
        return {"rollout/epoch": 0.0, "rollout/digits": float(self._digits)}

    def state(self) -> dict[str, Json]:
        """All that `load` needs."""
        return {"digits": self._digits, "taken": self._taken, "recent": list(self._recent)}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken."""
        try:
            self._digits, self._taken, self._recent = state["digits"], state["taken"], list(state["recent"])
        except KeyError as error:
            raise CheckpointError(
                f"The checkpoint is not of the task 'harder': it has no {error}."
            ) from error


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The task, chosen by `--task harder`."""
    yield Source(
        name="harder",
        factory=f"{__name__}:Harder",
        config=HarderConfig,
        summary="copy numbers that get longer as the policy gets better",
        suggests={"reward": ["token_match"]},
    )
