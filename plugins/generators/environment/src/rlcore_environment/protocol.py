"""What an environment is to the generator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from rlcore import Sample

TURNS = "environment_turns"
"""In a sample's metadata: [place of the turn's last token, its reward] of each turn."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the environment answers to a turn.

    `observation`: what the policy reads next; not read where `done`. `reward`: of this turn. `truncated`: it
    ended by a limit of the environment's, not by itself. `metrics`: logged as `generator/<name>`, summed over
    the turns.
    """

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode; made for one sample by `factory(**options)`, and used by nobody else.

    What it raises fails the sample (`environment_crashed`), as does what takes too long.
    """

    async def reset(self, sample: Sample) -> str:
        """Begin. The first observation, which follows the prompt; "" where the prompt says everything.

        `sample.prompt.metadata` is the row's; for chance take `sample.seed`, so that runs repeat.
        """

    async def step(self, text: str) -> Step:
        """The policy has said `text`."""


@runtime_checkable
class ClosableEnvironment(Protocol):
    """An environment that holds something."""

    async def close(self) -> None:
        """Release it; called once, after a crash or a time-out too."""


@runtime_checkable
class FinishingEnvironment(Protocol):
    """An environment that judges what was reached when the policy runs out of turns or tokens."""

    async def finish(self) -> Step:
        """Its reward and metrics count to the last turn. Not called after a step that was `done`."""
