"""What plugins of the kinds `reward` and `filter` implement."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rlcore.api.types import Group, Json, Prompt, Sample, Score


class Reward(Protocol):
    """Kind `reward`: runs in a worker process of its own, which has a time limit and can be killed.

    `factory(config)` builds one in each worker (`--reward-workers`), after the fork. A factory with a
    parameter `tokenizer` beside `config` gets the run's tokenizer. With `rlcore_toolkit.token_spans` it
    finds the tokens of a piece of text, to give them a reward of their own. One with a parameter `settings`
    gets the settings of the run by name, and the directory of its model as `model`. See also
    `CheckedReward`, `AskingReward`.

        >>> from collections.abc import Sequence
        >>> from rlcore import Config, Sample, Score
        >>> class Brevity:
        ...     def __init__(self, config: Config) -> None: ...
        ...     def score(self, samples: Sequence[Sample]) -> list[Score]:
        ...         return [Score(value=1 / (1 + len(sample.response_ids))) for sample in samples]
    """

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score for each sample. `samples` are those of one group, in order.

        Called once a group, when all its samples are generated: COMPLETED or TRUNCATED, also with an empty
        response. It may block. In an evaluation, and for a greedy baseline, the group has one sample.

        The samples fail if it raises, takes longer than `--reward-timeout` seconds, returns another number of
        scores, or a score that is not finite or outside of the config's `value_range`. The group is then
        scored once more, and dropped if that fails too.
        """


class CheckedReward(Protocol):
    """A factory of a reward that needs something of the machine, such as a program or a server."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises `UserError` if the reward cannot work here. Called before any process starts."""


class AskingReward(Protocol):
    """A factory of a reward that cannot judge every prompt, such as one without a label of its form."""

    @classmethod
    def prompt_complaints(cls, config: Any, prompts: Sequence[Prompt]) -> Iterable[str]:
        """For each of `prompts`, in order, why the reward cannot judge it: a sentence; empty: it can.

        rlcore asks for each set of prompts before any process starts, and refuses the run with the first
        sentence. Of a set that stays in its files (--source.streaming) it asks for the first
        `rlcore.CHECKED_AHEAD` prompts. `rlcore_toolkit.complaints_of` makes the sentences of a function that
        raises.
        """


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a filter decides."""

    group: Group | None
    """What to go on with: the group, or a changed copy. None: the group is dropped."""
    reason: str | None = None
    """Why it is dropped: a short identifier, counted as `rollout/groups_dropped/<reason>`."""


class Filter(Protocol):
    """Kind `filter`: judges a scored group.

    `factory(config)` builds it in the driver.

        >>> from rlcore import Config, Group, Verdict
        >>> class SomeRight:
        ...     def __init__(self, config: Config) -> None: ...
        ...     def judge(self, group: Group) -> Verdict:
        ...         if all(sample.score.value == 0 for sample in group.samples):
        ...             return Verdict(group=None, reason="all_wrong")
        ...         return Verdict(group=group)
    """

    def judge(self, group: Group) -> Verdict:
        """Keep the group, keep a changed copy of it, or drop it with a reason.

        Called once for each scored group, in the driver's event loop: it must be quick, and never block.
        Every sample has a `score`. The filters of a run judge in their order, each what the one before kept.
        A copy may change loss masks, and rewards if the config says `lowers_rewards`. Evaluations have no
        filters. What it raises ends the run (`PluginError`).
        """


@runtime_checkable
class GroupOrder(Protocol):
    """A filter that also orders finished groups: an asynchronous run trains on the first ones."""

    def order(self, groups: Sequence[Group], version: int) -> Sequence[Group]:
        """All of `groups` with the best to train on first. They come with the oldest first.

        `version`: of the newest weights. A group that would become too old (`--max-staleness`) goes first,
        whatever the order says.
        """


ANSWER_KEY = "answer_text"
"""In a sample's metadata: its text without the words of a chat template's header (`answer_of`)."""


def answer_of(sample: Sample) -> str:
    """What a sample answers: `answer_text` of its text, without the header that its chat template writes.

    A policy that learned from harmony says `<|channel|>final<|message|>yes`, which is "finalyes" as text
    without special tokens. core adds the text behind that header to the sample's metadata.
    """
    return answer_text(str(sample.metadata.get(ANSWER_KEY, sample.text)))


def answer_text(text: str) -> str:
    """What a text answers: what stands behind the `</think>` of its thoughts, which may be empty.

    A policy that learned from a chat template says also the empty thought that Qwen3's or GLM's writes before
    an answer. Without a thought it is the whole text, and "" where a response ends within a thought that it
    has begun itself.

        >>> from rlcore import answer_text
        >>> answer_text("<think>\\n\\n</think>\\n\\nyes")
        'yes'
    """
    _, end, answer = text.rpartition("</think>")
    answer = answer.lstrip() if end else answer
    return "" if answer.lstrip().startswith("<think>") else answer


def accepted_answers(label: Json) -> list[str]:
    """The accepted answers: a string, another JSON scalar in its JSON spelling, or a list of these.

    `ValueError` if there are none.
    """
    labels = label if isinstance(label, list | tuple) else [label]
    if not labels or any(answer is None or isinstance(answer, dict | list) for answer in labels):
        raise ValueError(f"the label {label!r} is no text, number or list of these to compare responses with")
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in labels]
