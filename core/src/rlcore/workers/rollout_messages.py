"""What the driver and its rollout workers send each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rlcore.api.types import Sample

FromDriver = Literal["generate", "cancel", "answer", "failure"]
"""A call of a generator, its end before its time; what a request gave, or the error that it raised."""
FromWorker = Literal["complete", "score", "withdraw", "made", "failed", "log"]
"""A request of a generator, and that nobody waits for it any more; what a call made, or its error."""

Changes = Mapping[str, Any]
"""Fields of a sample, by their names."""


class Message(NamedTuple):
    """`number`: of the call or request that it is about.

    `content`: a pickle of its own, so that what cannot travel is the fault of one call.
    """

    what: FromDriver | FromWorker
    number: int
    content: bytes = b""


def changes_of(samples: Iterable[Sample], asked: Sequence[Sample]) -> list[Changes]:
    """What differs in each of `samples` from the one of `asked` at its place, or from the last of them.

    The rest need not travel: the receiver has `asked`. A dictionary always does, because it may have been
    changed in place.
    """
    pairs = ((sample, asked[min(place, len(asked) - 1)]) for place, sample in enumerate(samples))
    return [
        {
            name: value
            for name, value in vars(sample).items()
            if value is not vars(of)[name] or isinstance(value, dict)
        }
        for sample, of in pairs
    ]


def changed(changes: Sequence[Changes], asked: Sequence[Sample]) -> list[Sample]:
    """The samples whose `changes_of` these are."""
    return [asked[min(place, len(asked) - 1)].but(**fields) for place, fields in enumerate(changes)]
