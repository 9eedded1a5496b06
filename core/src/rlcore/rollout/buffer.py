"""The data buffer: what has been drawn and not yet been trained on. It loses and doubles nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from rlcore.errors import RunError
from rlcore.types import Group, Json, Prompt


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A prompt to generate for. `attempt` counts the tries before this one."""

    group_id: int
    prompt: Prompt
    epoch: int
    attempt: int = 0


_DRAWS = TypeAdapter(tuple[Draw, ...])
_GROUPS = TypeAdapter(tuple[Group, ...])


def groups_to_json(groups: Sequence[Group]) -> Json:
    """Groups as JSON values; `groups_from_json` gives equal groups back."""
    return _GROUPS.dump_python(tuple(groups), mode="json")


def groups_from_json(data: Json) -> tuple[Group, ...]:
    """The groups that `groups_to_json` wrote."""
    return _GROUPS.validate_python(data)


class DataBuffer:
    """Each draw is in one of three places: returned (to be generated), in flight, or a group that waits.

    A draw leaves when its group is taken to be trained on or is dropped. Everything goes by group id. In a
    saved state, draws in flight count as returned: whoever resumes generates them again, with the same seeds.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._returned: dict[int, Draw] = {}
        self._in_flight: dict[int, Draw] = {}
        self._waiting: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self._returned) + len(self._in_flight) + len(self._waiting)

    def start(self, draws: Iterable[Draw]) -> None:
        """New draws, now in flight. Raises `RunError` above the buffer's capacity."""
        new = {draw.group_id: draw for draw in draws}
        if len(self) + len(new) > self._capacity:
            raise RunError(
                f"The data buffer would hold {len(self) + len(new)} groups; {self._capacity} is its bound."
            )
        self._in_flight |= new

    def restart(self, most: int) -> list[Draw]:
        """At most `most` returned draws, the oldest first, now in flight."""
        chosen = [self._returned.pop(group_id) for group_id in sorted(self._returned)[:most]]
        self._in_flight |= {draw.group_id: draw for draw in chosen}
        return chosen

    def give_back(self) -> None:
        """Draws in flight will not be finished: they are generated later."""
        self._returned |= self._in_flight
        self._in_flight = {}

    def drop(self, group_id: int) -> None:
        """A draw in flight that gave nothing to train on."""
        del self._in_flight[group_id]

    def finish(self, groups: Iterable[Group]) -> None:
        """Draws in flight became groups, which wait to be trained on."""
        for group in groups:
            del self._in_flight[group.group_id]
            self._waiting[group.group_id] = group

    def waiting(self) -> list[Group]:
        """The groups that wait, the oldest first."""
        return [self._waiting[group_id] for group_id in sorted(self._waiting)]

    def take(self, group_ids: Iterable[int]) -> None:
        """Waiting groups go to the trainer."""
        for group_id in group_ids:
            del self._waiting[group_id]

    def expire(self, groups: Iterable[Group]) -> None:
        """Waiting groups are too old to be trained on: their prompts are generated again."""
        for group in groups:
            del self._waiting[group.group_id]
            self._returned[group.group_id] = Draw(
                group_id=group.group_id,
                prompt=group.prompt,
                epoch=group.epoch,
                attempt=1 + max(sample.attempt for sample in group.samples),
            )

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        draws = {**self._returned, **self._in_flight}
        return {
            "draws": _DRAWS.dump_python(tuple(draws[key] for key in sorted(draws)), mode="json"),
            "groups": groups_to_json(self.waiting()),
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Hold what `state` says, and nothing else."""
        self._returned = {draw.group_id: draw for draw in _DRAWS.validate_python(state["draws"])}
        self._in_flight = {}
        self._waiting = {group.group_id: group for group in groups_from_json(state["groups"])}
