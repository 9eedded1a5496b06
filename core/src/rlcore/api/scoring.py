"""What plugins of the kinds `reward` and `filter` implement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rlcore.api.types import Group, Json, Prompt, Sample, Score


class Reward(Protocol):
    """Kind `reward`: runs in a worker process of its own, which has a time limit and can be killed.

    A factory with a parameter `tokenizer` beside `config` gets the run's tokenizer. With `rlcore.token_spans`
    it finds the tokens of a piece of text, to give them a reward of their own. One with a parameter
    `settings` gets the settings of the run by name, and the directory of its model as `model`. See also
    `CheckedReward`, `AskingReward`.
    """

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score for each sample. `samples` are those of one group, in order.

        In an evaluation, and for a greedy baseline, the group has one sample.
        """


class CheckedReward(Protocol):
    """A factory of a reward that needs something of the machine, such as a program or a server."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises `UserError` if the reward cannot work here. Called before any process starts."""


class AskingReward(Protocol):
    """A factory of a reward that cannot judge every prompt."""

    @classmethod
    def missing_of_prompt(cls, config: Any, prompt: Prompt) -> str:
        """What the reward asks for that `prompt` does not have, in a sentence; empty: nothing.

        rlcore refuses a run with such a prompt before any process starts.
        """


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a filter decides. `group`: what to go on with; None: the group is dropped.

    `reason`: why it is dropped, a short identifier that becomes a metric.
    """

    group: Group | None
    reason: str | None = None


class Filter(Protocol):
    """Kind `filter`: judges a scored group."""

    def judge(self, group: Group) -> Verdict:
        """Keep the group, keep a changed copy of it, or drop it with a reason."""


@runtime_checkable
class GroupOrder(Protocol):
    """A filter that also orders finished groups: an asynchronous run trains on the first ones."""

    def order(self, groups: Sequence[Group], version: int) -> Sequence[Group]:
        """All of `groups` in the order of preference. They come with the oldest first.

        `version`: of the newest weights. A group that would become too old (`--max-staleness`) goes first,
        whatever the order says.
        """


def accepted_answers(label: Json) -> list[str]:
    """The accepted answers: a string, another JSON scalar in its JSON spelling, or a list of these.

    `ValueError` if there are none.
    """
    labels = label if isinstance(label, list | tuple) else [label]
    if not labels or any(answer is None or isinstance(answer, dict | list) for answer in labels):
        raise ValueError(
            f"the label {label!r} is no text, number or list of these to compare a response with"
        )
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in labels]
