"""`PromptQueue`: the draws to generate next, in the same order in every run."""

from collections.abc import Mapping

from rlcore import Cursor, Group, Json
from rlcore_sampling.buffer import BufferedDraw, DataBuffer


class PromptQueue:
    """Draws that were returned to the `buffer` come first, then new ones from the `cursor`."""

    def __init__(self, cursor: Cursor, buffer: DataBuffer) -> None:
        self._cursor = cursor
        self._next_group = 0
        self.buffer = buffer

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch` and what else the cursor has to say."""
        return self._cursor.metrics()

    def scored(self, group: Group) -> None:
        """Tell the cursor the rewards of a group."""
        rewards = [sample.score.value for sample in group.samples if sample.score is not None]
        self._cursor.learn(group.prompt.prompt_id, rewards)

    def draw(self, count: int) -> list[BufferedDraw]:
        """`count` draws, now in flight in the buffer: returned ones first, then new ones."""
        draws = self.buffer.restart(count)
        taken = self._cursor.take(count - len(draws))
        new = [
            BufferedDraw(group_id=group_id, prompt=prompt, epoch=epoch)
            for group_id, (prompt, epoch) in enumerate(taken, self._next_group)
        ]
        self._next_group += len(new)
        self.buffer.start(new)
        return draws + new

    def state(self) -> dict[str, Json]:
        """Cursor and buffer as JSON: the draws that were not trained on yet, and what comes next."""
        return {
            "cursor": self._cursor.state(),
            "buffer": self.buffer.state(),
            "next_group": self._next_group,
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self._cursor.load(state["cursor"])
        self.buffer.load(state["buffer"])
        self._next_group = int(state["next_group"])
