"""An exact, resumable walk over a source's prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlcore.api.errors import CheckpointError
from rlcore.api.types import Json, Prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PromptCursor:
    """Draws each prompt once an epoch, in an order that follows from (seed, epoch), or in the source's order.

    A draw may end one epoch and begin the next. Prompts in a file may come in `blocks`, such as the row
    groups of a parquet file. Reading one row decodes its whole block, so the order finishes a block before it
    starts another.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, *, shuffle: bool = True) -> None:
        assert len(prompts) > 0, "a source raises DataError where it has no prompts"
        self._prompts = prompts
        blocks = getattr(prompts, "blocks", (len(prompts),))
        self._blocks = blocks if len(blocks) > 1 else None
        self._seed = seed
        self._shuffles = shuffle
        self._epoch = 0
        self._offset = 0
        self._order = self._make_order()

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """Nothing: the order does not depend on rewards."""

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch`."""
        return {"rollout/epoch": self._epoch + self._offset / len(self._prompts)}

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts, each with its epoch."""
        taken: list[tuple[Prompt, int]] = []
        while len(taken) < n:
            if self._offset == len(self._prompts):
                self._epoch, self._offset = self._epoch + 1, 0
                self._order = self._make_order()
            rows = self._order[self._offset : self._offset + n - len(taken)]
            taken += [(self._prompts[int(row)], self._epoch) for row in rows]
            self._offset += len(rows)
        return taken

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        return {
            "epoch": self._epoch,
            "offset": self._offset,
            "prompts": len(self._prompts),
            "seed": self._seed,
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where prompts or seed differ."""
        for name, now in (("prompts", len(self._prompts)), ("seed", self._seed)):
            if state[name] != now:
                raise CheckpointError(
                    f"The checkpoint's place in the data does not fit: {name} was {state[name]}, is {now}."
                )
        self._epoch, self._offset = int(state["epoch"]), int(state["offset"])
        self._order = self._make_order()

    def _make_order(self) -> NDArray[np.int64]:
        if not self._shuffles:
            return np.arange(len(self._prompts))
        # numpy promises only the raw stream of a bit generator to stay the same in later releases.
        bits = np.random.PCG64(np.random.SeedSequence([self._seed, self._epoch]))
        order = np.argsort(bits.random_raw(len(self._prompts)), kind="stable")
        if self._blocks is None:
            return order
        # Blocks in a random order of their own, and within each the order of its rows from above: both sorts
        # are stable.
        rank = np.argsort(bits.random_raw(len(self._blocks)), kind="stable").argsort()
        block = np.repeat(rank, self._blocks)
        return order[np.argsort(block[order], kind="stable")]
