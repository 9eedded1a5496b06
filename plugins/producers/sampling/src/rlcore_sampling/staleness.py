"""How old the groups of an asynchronous run may be, and which of them leave first."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rlcore import RECORDED, Group, PackedFlags, PackedFloats, Sample


def in_time(begun: Iterable[int], version: int, *, staleness: int, batch: int) -> bool:
    """Whether groups begun with the versions `begun` can all be trained on before they are too old.

    The batch that is trained with `version` leaves now; each later one takes the `batch` oldest that are
    left, and may be of weights at most `staleness` versions behind its own.
    """
    return all(version + 1 + place // batch - start <= staleness for place, start in enumerate(sorted(begun)))


def chosen_batch(
    waiting: Sequence[Group], running: Iterable[int], version: int, *, staleness: int, batch: int
) -> list[Group] | None:
    """The groups of a batch, of those that wait in the order of preference; None: it cannot leave yet.

    The first `batch` go if all others can still be trained on in time. Else the oldest go before them, as
    few as it takes. `running`: the versions that unfinished groups began with.
    """
    age = {group.group_id: oldest(group) for group in waiting}
    by_age = sorted(waiting, key=lambda group: (age[group.group_id], group.group_id))

    def parted(forced: int) -> tuple[list[Group], list[Group]]:
        """The groups that go and those that stay. The `forced` oldest go first."""
        must = {group.group_id for group in by_age[:forced]}
        rest = [group for group in waiting if group.group_id not in must]
        return [*by_age[:forced], *rest[: batch - forced]], rest[batch - forced :]

    def is_in_time(forced: int) -> bool:
        begun = [*(age[group.group_id] for group in parted(forced)[1]), *running]
        return in_time(begun, version, staleness=staleness, batch=batch)

    # The more of the oldest go, the younger are those that are left: what is in time once stays so.
    fewest = bisect_left(range(batch + 1), True, key=is_in_time)
    return parted(fewest)[0] if fewest <= batch else None


def without_stale(group: Group, oldest_version: int) -> Group:
    """`group` with the tokens of weights before `oldest_version` left out of the loss."""

    def masked(sample: Sample) -> Sample:
        mask, log_probs, place = PackedFlags(), PackedFloats(), 0
        for version, length in sample.version_runs:
            kept = length if version >= oldest_version or version == RECORDED else 0
            mask += PackedFlags(sample.loss_mask[place : place + kept]) + PackedFlags.full(length - kept, 0)
            log_probs += PackedFloats(sample.log_probs[place : place + kept])
            log_probs += PackedFloats.full(length - kept, 0.0)
            place += length
        return replace(sample, loss_mask=mask, log_probs=log_probs)

    return replace(group, samples=tuple(map(masked, group.samples)))


def oldest(group: Group) -> int:
    """The oldest weights that made a token of it."""
    return _extreme(min, group)


def newest(group: Group) -> int:
    """The newest weights that made a token of it."""
    return _extreme(max, group)


def _extreme(choose: Callable[[Iterable[int]], int], group: Group) -> int:
    sampled = {version for sample in group.samples for version in sample.versions} - {RECORDED}
    return choose(sampled) if sampled else sys.maxsize  # what was recorded is never too old
