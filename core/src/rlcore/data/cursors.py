"""Cursors over prompts: an order for each epoch, a mix of sources by weight, a curriculum by success rate."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlcore.api.errors import CheckpointError
from rlcore.api.run_config import RunConfig
from rlcore.api.sources import Cursor, DrawingSource, PromptSource, content_hash, content_share
from rlcore.api.types import Json, Prompt
from rlcore.data.source_mix import SourceMix

EPOCH, SKIPPED = "rollout/epoch", "rollout/prompts_skipped"
_NEWEST = 0.5
"""Weight of the newest result in a prompt's running success rate."""


class PromptCursor:
    """Draws each prompt once an epoch, in an order that follows from (seed, epoch), or in the source's order.

    A draw may end one epoch and begin the next. Prompts in a file may come in `blocks`, such as the row
    groups of a parquet file. Reading one row decodes its whole block, so the order finishes a block before it
    starts another.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, *, shuffle: bool = True) -> None:
        assert len(prompts) > 0, "a source raises DataError where it has no prompts"
        self._prompts = prompts
        self._blocks = getattr(prompts, "blocks", (len(prompts),))
        self._seed = seed
        self._shuffles = shuffle
        self._epoch = 0
        self._offset = 0
        self._order = self._make_order()

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """Nothing: the order does not depend on rewards."""

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch`."""
        return {EPOCH: self._epoch + self._offset / len(self._prompts)}

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
        # Blocks in a random order of their own, and within each the order of its rows from above: both sorts
        # are stable.
        rank = np.argsort(bits.random_raw(len(self._blocks)), kind="stable").argsort()
        return order[np.argsort(np.repeat(rank, self._blocks)[order], kind="stable")]


def cursor_of(prompts: Sequence[Prompt], run: RunConfig, source: PromptSource | None = None) -> Cursor:
    """The cursor that a run draws `prompts` with.

    `source`: of the prompts; it may have a cursor of its own.
    """
    if isinstance(prompts, SourceMix):
        parts = {portion.name: cursor_of(portion.prompts, run) for portion in prompts.portions}
        return MixCursor(parts, {portion.name: portion.weight for portion in prompts.portions})
    if isinstance(source, DrawingSource):
        cursor = source.cursor(prompts, run.seed)
    else:
        cursor = PromptCursor(prompts, run.seed, shuffle=run.data.shuffle)
    if not run.data.curriculum:
        return cursor
    return CurriculumCursor(cursor, run.seed, run.data.curriculum_floor, run.data.curriculum_solved_at)


class MixCursor:
    """Draws from the cursors of several sources in the proportions of `weights`, without randomness.

    Each draw goes to the source that is furthest behind its share, so no source is ever a whole draw ahead of
    its share. Each source has epochs of its own.
    """

    def __init__(self, parts: Mapping[str, Cursor], weights: Mapping[str, float]) -> None:
        self._parts = dict(parts)
        total = sum(weights.values())
        self._weights = {name: weight / total for name, weight in weights.items()}
        self._taken = dict.fromkeys(self._parts, 0)

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts, each with its epoch."""
        order = [self._furthest_behind() for _ in range(n)]
        drawn = {name: iter(part.take(order.count(name))) for name, part in self._parts.items()}
        return [next(drawn[name]) for name in order]

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """Passed on to the cursor of the prompt's source."""
        self._parts[prompt_id.partition("/")[0]].learn(prompt_id, rewards)

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch/<source>` of each source; `rollout/epoch` is the largest of them."""
        parts = {name: part.metrics() for name, part in self._parts.items()}
        metrics = {f"{EPOCH}/{name}": of_part[EPOCH] for name, of_part in parts.items()}
        skipped = [of_part[SKIPPED] for of_part in parts.values() if SKIPPED in of_part]
        return {EPOCH: max(metrics.values()), **metrics, **({SKIPPED: sum(skipped)} if skipped else {})}

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        return {
            "weights": self._weights,
            "taken": dict(self._taken),
            "parts": {name: part.state() for name, part in self._parts.items()},
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the sources are not the same."""
        if state.get("weights") != self._weights:
            raise CheckpointError(
                f"The checkpoint's place in the data does not fit: weights were {state.get('weights')}, are "
                f"{self._weights}."
            )
        self._taken = {name: int(state["taken"][name]) for name in self._parts}
        for name, part in self._parts.items():
            part.load(state["parts"][name])

    def _furthest_behind(self) -> str:
        """The source of the next draw, which is counted."""
        draw = sum(self._taken.values()) + 1
        name = max(self._parts, key=lambda part: self._weights[part] * draw - self._taken[part])
        self._taken[name] += 1
        return name


class CurriculumCursor:
    """Passes over most prompts that the policy solves always or never: such groups teach nothing.

    A reward of at least `solved_at` solves a prompt. A prompt with success rate p is drawn with probability
    floor + (1 - floor) · 4p(1 - p); one without a result is always drawn. The rate is a running mean in which
    the newest result counts half. The choice follows from seed, prompt id and epoch, so a resumed run makes
    the same one.
    """

    def __init__(self, cursor: Cursor, seed: int, floor: float, solved_at: float) -> None:
        assert floor > 0, "else it would look forever where every prompt is solved"
        self._cursor = cursor
        self._seed = seed
        self._floor = floor
        self._solved_at = solved_at
        self._rates: dict[str, float] = {}
        self._skipped = 0

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts, each with its epoch."""
        taken: list[tuple[Prompt, int]] = []
        while len(taken) < n:
            drawn = self._cursor.take(n - len(taken))
            kept = [draw for draw in drawn if self._is_kept(*draw)]
            self._skipped += len(drawn) - len(kept)
            taken += kept
        return taken

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """The share of answers that solve the prompt becomes its newest result."""
        self._cursor.learn(prompt_id, rewards)
        success = sum(value >= self._solved_at for value in rewards) / len(rewards)
        rate = self._rates.get(prompt_id)
        self._rates[prompt_id] = success if rate is None else rate + _NEWEST * (success - rate)

    def metrics(self) -> dict[str, float]:
        """The epoch, and how many prompts were passed over so far."""
        return {**self._cursor.metrics(), SKIPPED: self._skipped}

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        return {"cursor": self._cursor.state(), "rates": dict(self._rates), "skipped": self._skipped}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        if "rates" not in state:
            raise CheckpointError("The checkpoint's place in the data does not fit: it has no curriculum.")
        self._cursor.load(state["cursor"])
        self._rates = {prompt_id: float(rate) for prompt_id, rate in state["rates"].items()}
        self._skipped = int(state["skipped"])

    def _is_kept(self, prompt: Prompt, epoch: int) -> bool:
        rate = self._rates.get(prompt.prompt_id)
        if rate is None:
            return True
        # p(1 - p) is the variance of a reward of 0 or 1: what a group can teach. At p = ½ this is 1.
        chance = self._floor + (1 - self._floor) * 4 * rate * (1 - rate)
        return content_share(content_hash(f"{prompt.prompt_id}\x1f{epoch}", self._seed)) < chance
