"""Several sources in given proportions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

from rlcore.api.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The prompts of one source.

    Their ids begin with `name/`. `weight`: in proportion to the other sources.
    """

    name: str
    weight: float
    prompts: Sequence[Prompt]


class SourceMix(Sequence[Prompt]):
    """The prompts of all portions, one after the other. `MixCursor` draws from them by weight."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self.portions = tuple(portions)

    def __len__(self) -> int:
        return sum(len(portion.prompts) for portion in self.portions)

    def __iter__(self) -> Iterator[Prompt]:
        return chain.from_iterable(portion.prompts for portion in self.portions)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...

    @overload
    def __getitem__(self, place: slice) -> list[Prompt]: ...

    def __getitem__(self, place: int | slice) -> Prompt | list[Prompt]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        at = range(len(self))[place]
        for portion in self.portions:
            if at < len(portion.prompts):
                return portion.prompts[at]
            at -= len(portion.prompts)
        raise AssertionError("a range holds no place beyond its end")
