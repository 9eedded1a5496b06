"""What a plugin of kind `source` implements."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from rlcore.api.types import Json, Messages, Prompt


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What a source offers. Its sequences may be lazy, and in any order."""

    train: Sequence[Prompt]
    """Prompts to train on. core shuffles them with an exact, resumable cursor. A sequence with an attribute
    `blocks` (lengths of runs of prompts, such as the row groups of a file) is read block by block. A
    `rlcore.SourceMix` is drawn from by the weights of its portions.
    """
    held_out: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Sets to evaluate on, by name. The scores of a set are logged as `eval/<name>/score`."""
    columns: Sequence[str] = ()
    """Names that a row of the data has, for errors about a key that it lacks."""


class Cursor(Protocol):
    """What a run draws its prompts from."""

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts, each with its epoch."""

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """Called with the `rewards` of each scored group, one for each answer, even if a filter drops the
        group.
        """

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch`, the passes over the prompts so far as a fraction, and any metrics of its own."""

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` if the data are not the same."""


class PromptSource(Protocol):
    """Kind `source`: where prompts come from. `factory(config)` builds it in the driver.

    A source for `--data` has the paths in its config. Beside this interface it may have that of
    `FileBackedSource`, `DrawingSource`, `ResponseSource` or `PairSource`.

        >>> from rlcore import Config, Prompt, Prompts
        >>> class Doubles:
        ...     def __init__(self, config: Config) -> None: ...
        ...     def prompts(self) -> Prompts:
        ...         rows = [Prompt(prompt_id=f"{n}", text=f"{n}+{n}=", label=f"{2 * n}") for n in range(100)]
        ...         return Prompts(train=rows[:90], held_out={"doubles": rows[90:]})
        >>> len(Doubles(Config()).prompts().train)
        90
    """

    def prompts(self) -> Prompts:
        """All prompts. Called before any process starts, and anew when the run is resumed.

        It must return the same prompts each time, with ids that are unique in their set. Raises `DataError`
        naming file, line and reason where a row is malformed.
        """


@runtime_checkable
class FileBackedSource(Protocol):
    """A source that reads files. A run refuses to resume when they have changed."""

    def files(self) -> Sequence[str]:
        """Paths and URLs of the prompts to train on."""


@runtime_checkable
class DrawingSource(Protocol):
    """A source with a cursor of its own: it may add prompts, or choose them by their scores, during the
    run.
    """

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> Cursor:
        """The cursor of a run. `prompts`: `prompts().train`, which were checked before the run.

        `take` may return other prompts too, but never fewer than it is asked for. Every checkpoint holds its
        `state`.
        """


@runtime_checkable
class ResponseSource(Protocol):
    """A source that has a good response to each prompt, for recipes that train on given responses."""

    def with_responses(self) -> Prompts:
        """The same as `prompts`, but each prompt to train on has one entry in `responses`."""


@runtime_checkable
class PairSource(Protocol):
    """A source that has a better and a worse response to each prompt, for recipes that train on pairs."""

    def with_pairs(self) -> Prompts:
        """The same as `prompts`, but each prompt to train on has the `responses` (chosen, rejected)."""


def content_hash(text: str | Messages, seed: int = 0) -> int:
    """A hash of 64 bits, the same for equal texts and for equal messages, in every process."""
    content = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False)
    digest = blake2b(content.encode(), digest_size=8, salt=seed.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def content_share(content: int) -> float:
    """The hash as a number in [0, 1): to hold out a fixed share of the prompts, compare it with that
    share.
    """
    return content / 2**64
