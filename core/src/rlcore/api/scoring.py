"""What plugins of the kinds `reward` and `filter` implement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rlcore.api.types import Group, Json, Sample, Score


class Reward(Protocol):
    """Kind `reward`: runs in a killable worker process with a time limit. May be a `CheckedReward` too.

    A factory that has a parameter `tokenizer` beside `config` is given the run's: `rlcore.token_spans` tells
    where the tokens of a response stand in its text, for credit of a span of text.
    """

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score for each sample. `samples` are all siblings of one group, in order.

        In an evaluation, and for a greedy baseline, the group has one.
        """
        ...


class CheckedReward(Protocol):
    """A reward's factory that knows what the machine must have."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises `UserError` where the reward cannot work here. Called before any process is started."""
        ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`group` is what goes on (None: dropped, for `reason`, a short identifier that becomes a metric)."""

    group: Group | None
    reason: str | None = None


class Filter(Protocol):
    """Kind `filter`: judges a scored group."""

    def judge(self, group: Group) -> Verdict:
        """Keep (possibly changed) or drop with a reason."""
        ...


@runtime_checkable
class GroupOrder(Protocol):
    """A filter that also says which finished groups of an asynchronous run are trained on first."""

    def order(self, groups: Sequence[Group], version: int) -> Sequence[Group]:
        """All of `groups`, which come with the oldest first, in the order of preference.

        `version`: of the newest weights. A group that could not be trained on in time otherwise
        (`--max-staleness`) goes before those that are preferred.
        """
        ...


def accepted_answers(label: Json) -> list[str]:
    """The accepted answers: a string, another JSON scalar in its JSON spelling, or a list of these.

    `ValueError` where there are none.
    """
    labels = label if isinstance(label, list | tuple) else [label]
    if not labels or any(answer is None or isinstance(answer, dict | list) for answer in labels):
        raise ValueError(
            f"the label {label!r} is no text, number or list of these to compare a response with"
        )
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in labels]
