"""The nouns: `Prompt` → `Sample` (one trajectory) → `Group` (the samples of one prompt).

Four identities, never conflated: `prompt_id` (a row of the source), `group_id` (one draw of a prompt),
`rollout_id` (samples split from one trajectory share it) and `attempt` (how often it was generated anew).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlcore.api.packed import (
    Packed,
    PackedFlags,
    PackedFloats,
    PackedInts,
    TokenFloats,
    TokenIds,
    TokenMask,
    pack,
)

Json = Any
"""A value that `json.dumps` accepts."""


def parse_json(text: str | bytes) -> Json:
    """As `json.loads`. What is nested too deeply is a ValueError, as every other fault is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


Messages = Sequence[Mapping[str, Json]]
"""A chat: mappings with `role` and `content`."""


class GenerationStatus(StrEnum):
    """How the generation of a sample ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class RewardStatus(StrEnum):
    """How the scoring of a sample ended. A time-out is a status, never a score of 0."""

    PENDING = "pending"
    SCORED = "scored"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of a prompt source: what is asked, and what a reward needs to judge the answer.

    `responses`: those that the data give, to train on: one, or (chosen, rejected). Each is a text, or the
    messages that follow those of `text`, of which the assistant's are trained on unless they say
    `"train": false`. `tools`: descriptions of functions (JSON schema), which the chat template shows.
    `chat_template_kwargs`: further variables of the template (`enable_thinking`).
    """

    prompt_id: str
    text: str | Messages
    label: Json = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    responses: tuple[str | Messages, ...] = ()
    tools: tuple[Mapping[str, Json], ...] = ()
    chat_template_kwargs: Mapping[str, Json] = field(default_factory=dict)


EVALUATION, BASELINE = "eval-", "greedy-"
"""How the rollout ids of evaluations begin, and of the greedy responses whose reward is a baseline."""

RECORDED = -1
"""The version of tokens that other weights sampled than any of this run. They are never too old."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """From response token `start` on, tokens were sampled with weight version `version`."""

    start: int
    version: int


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a reward says of one sample.

    `value`: the scalar reward; filters and estimators that compare whole responses read it. `per_token`:
    optional rewards of the response tokens (same length), which estimators of returns read instead; they
    need not add up to `value`. `parts`: named parts, each logged as a metric.
    """

    value: float
    per_token: tuple[float, ...] | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


_PACKED: Mapping[str, type[Packed[Any]]] = {
    "response_ids": PackedInts,
    "loss_mask": PackedFlags,
    "log_probs": PackedFloats,
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One trajectory. Tokens in, tokens out: the response is never decoded and tokenised again.

    `response_ids`, `loss_mask` (1 = the policy sampled this token, 0 = a tool or the environment wrote it)
    and `log_probs` (as those of `rlcore.Completion`; 0.0 where the mask is 0) have one entry per
    response token. They are given as tuples and held packed (`PackedInts`), which behaves as a tuple does.
    A response that the data gave has neither log-probs nor `spans`. `extras` become columns
    of the batch: what has one entry per response token a column of tokens, a number one of samples
    (`rlcore.rollout.batch.to_batch`). `routed_experts`: of the last completion
    (`rlcore.Completion`), which took in all that stands before it; a reward gets none.

    What a generator says of the trajectory: `metrics`, each logged as the mean `generator/<name>`, and
    `failure`, a short identifier of why a FAILED one failed, counted as `rollout/failed/<failure>`.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    group_id: int
    index: int
    rollout_id: str
    attempt: int = 0
    seed: int = 0
    response_ids: TokenIds = ()
    loss_mask: TokenMask = ()
    log_probs: TokenFloats = ()
    text: str = ""
    spans: tuple[Span, ...] = ()
    status: GenerationStatus = GenerationStatus.PENDING
    reward_status: RewardStatus = RewardStatus.PENDING
    score: Score | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Json] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    routed_experts: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        # By its dictionary: the dataclass is frozen.
        pack(self.__dict__, _PACKED)

    def but(self, **changes: Any) -> Sample:
        """`dataclasses.replace`, ten times as fast: a step of many short responses makes thousands."""
        assert changes.keys() <= self.__dict__.keys(), f"of {sorted(changes)} not all are fields"
        pack(changes, _PACKED)
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changes)
        return made

    @property
    def is_aside(self) -> bool:
        """Whether it is one of an evaluation, or a baseline's: nothing that is trained on."""
        return self.rollout_id.startswith((EVALUATION, BASELINE))

    @property
    def versions(self) -> frozenset[int]:
        """The weight versions that produced the response."""
        return frozenset(span.version for span in self.spans)

    @property
    def token_versions(self) -> tuple[int, ...]:
        """The weight version of each response token, by `spans`, which begin at 0 and do not overlap."""
        return tuple(version for version, length in self.version_runs for _ in range(length))

    @property
    def version_runs(self) -> tuple[tuple[int, int], ...]:
        """`token_versions` as (version, number of tokens), span after span."""
        if len(self.spans) == 1:  # as most
            return ((self.spans[0].version, len(self.response_ids)),)
        ends = [span.start for span in self.spans[1:]] + [len(self.response_ids)]
        return tuple((span.version, end - span.start) for span, end in zip(self.spans, ends, strict=True))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The samples of one draw of a prompt, in the order of their `index`."""

    group_id: int
    prompt: Prompt
    samples: tuple[Sample, ...]
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `top_k=0`, `top_p=1` and `min_p=0` leave the distribution whole.

    `seed` makes a request reproducible where the engine can (`local`: always).
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
