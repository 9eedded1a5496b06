"""The data buffer: all draws that were not trained on yet. It loses none and repeats none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from rlcore import Draw, Group, Json, RunError
from rlcore_toolkit import Partial, RequestKey


@dataclass(frozen=True, kw_only=True)
class BufferedDraw(Draw):
    """A draw that may have been tried before.

    `crashes`: how many tries crashed. `partials`: what engines have sampled in this try before it was
    interrupted.
    """

    crashes: int = 0
    partials: tuple[Partial, ...] = ()


_DRAWS = TypeAdapter(tuple[BufferedDraw, ...])
_GROUPS = TypeAdapter(tuple[Group, ...])


def groups_to_json(groups: Sequence[Group]) -> Json:
    """Groups as JSON values; `groups_from_json` gives equal groups back, with lists for arrays of extras."""
    return _GROUPS.dump_python(tuple(map(_without_arrays, groups)), mode="json")


def _without_arrays(group: Group) -> Group:
    """JSON has no arrays of numpy, which the extras of samples may be."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else value

    extras = [{name: plain(value) for name, value in sample.extras.items()} for sample in group.samples]
    samples = [sample.but(extras=one) for sample, one in zip(group.samples, extras, strict=True)]
    return replace(group, samples=tuple(samples))


def groups_from_json(data: Json) -> tuple[Group, ...]:
    """The groups that `groups_to_json` wrote."""
    return _GROUPS.validate_python(data)


class DataBuffer:
    """Each draw is in one of three states: returned (to be generated), in flight, or a finished group that
    waits.

    A draw leaves when its group is trained on or dropped. Draws are identified by group id. In a saved state,
    draws in flight count as returned: a resumed run generates them again, with the same seeds, and continues
    what had been sampled (`notes`).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._returned: dict[int, BufferedDraw] = {}
        self._in_flight: dict[int, BufferedDraw] = {}
        self._waiting: dict[int, Group] = {}
        self._notes: dict[int, dict[RequestKey, Partial]] = {}

    def __len__(self) -> int:
        return len(self._returned) + len(self._in_flight) + len(self._waiting)

    def start(self, draws: Iterable[BufferedDraw]) -> None:
        """Add new draws, which are now in flight. Raises `RunError` above the buffer's capacity."""
        new = {draw.group_id: draw for draw in draws}
        if len(self) + len(new) > self._capacity:
            raise RunError(
                f"The data buffer would hold {len(self) + len(new)} groups; {self._capacity} is its bound."
            )
        self._fly(new.values())

    def restart(self, most: int) -> list[BufferedDraw]:
        """Take up to `most` returned draws, the oldest first. They are now in flight."""
        chosen = [self._returned.pop(group_id) for group_id in sorted(self._returned)[:most]]
        self._fly(chosen)
        return chosen

    def give_back(self) -> None:
        """All draws in flight become returned ones. Later they continue from what was noted."""
        self._returned |= {group_id: self._noted(group_id) for group_id in self._in_flight}
        self._in_flight, self._notes = {}, {}

    def drop(self, group_id: int) -> None:
        """A draw in flight ends without anything to train on."""
        self._land(group_id)

    def crashed(self, group_id: int, most: int) -> bool:
        """A draw in flight crashed.

        Whether it will be generated again: after `most` crashes it is dropped.
        """
        draw = self._land(group_id)
        if draw.crashes + 1 >= most:
            return False
        self._returned[group_id] = replace(
            draw, attempt=draw.attempt + 1, crashes=draw.crashes + 1, partials=()
        )
        return True

    def notes(self, group_id: int) -> dict[RequestKey, Partial]:
        """What engines have sampled for a draw in flight, by request. The caller reads and writes it."""
        return self._notes[group_id]

    def finish(self, groups: Iterable[Group]) -> None:
        """Draws in flight are now finished groups, which wait to be trained on."""
        for group in groups:
            self._land(group.group_id)
            self._waiting[group.group_id] = group

    def waiting(self) -> list[Group]:
        """The finished groups, the oldest first."""
        return [self._waiting[group_id] for group_id in sorted(self._waiting)]

    def take(self, group_ids: Iterable[int]) -> None:
        """Finished groups leave for the trainer."""
        for group_id in group_ids:
            del self._waiting[group_id]

    def expire(self, groups: Iterable[Group]) -> None:
        """Finished groups are too old to be trained on. Their prompts become returned draws."""
        for group in groups:
            del self._waiting[group.group_id]
            self._returned[group.group_id] = BufferedDraw(
                group_id=group.group_id,
                prompt=group.prompt,
                epoch=group.epoch,
                attempt=1 + max(sample.attempt for sample in group.samples),
            )

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        draws = {**self._returned, **{group_id: self._noted(group_id) for group_id in self._in_flight}}
        return {
            "draws": _DRAWS.dump_python(tuple(draws[key] for key in sorted(draws)), mode="json"),
            "groups": groups_to_json(self.waiting()),
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Hold what `state` says, and nothing else."""
        self._returned = {draw.group_id: draw for draw in _DRAWS.validate_python(state["draws"])}
        self._in_flight, self._notes = {}, {}
        self._waiting = {group.group_id: group for group in groups_from_json(state["groups"])}

    def _fly(self, draws: Iterable[BufferedDraw]) -> None:
        for draw in draws:
            self._in_flight[draw.group_id] = draw
            self._notes[draw.group_id] = {partial.key: partial for partial in draw.partials}

    def _land(self, group_id: int) -> BufferedDraw:
        del self._notes[group_id]
        return self._in_flight.pop(group_id)

    def _noted(self, group_id: int) -> BufferedDraw:
        return replace(self._in_flight[group_id], partials=tuple(self._notes[group_id].values()))
