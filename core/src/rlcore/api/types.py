"""The nouns: `Prompt` → `Sample` (one trajectory) → `Group` (the samples of one prompt).

Four identities, never conflated: `prompt_id` (a row of the source), `group_id` (one draw of a prompt),
`rollout_id` (samples split from one trajectory share it) and `attempt` (how often it was generated anew).
"""

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
    """Like `json.loads`. What is nested too deeply is a ValueError, as every other fault is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


Messages = Sequence[Mapping[str, Json]]
"""A chat: mappings with `role` and `content`."""


class GenerationStatus(StrEnum):
    """How the generation of a sample ended."""

    PENDING = "pending"
    """Not generated yet. A generator must not return it."""
    COMPLETED = "completed"
    """The policy ended its answer."""
    TRUNCATED = "truncated"
    """The answer reached its limit. It is scored and trained on as a completed one."""
    ABORTED = "aborted"
    """rlcore or the engine interrupted it. It is generated once more, then its group is dropped."""
    FAILED = "failed"
    """The generator could not make it, for the reason in `Sample.failure`. As with ABORTED, it is tried
    twice.
    """


class RewardStatus(StrEnum):
    """How the scoring of a sample ended. A time-out is a status, never a score of 0."""

    PENDING = "pending"
    SCORED = "scored"
    EXEMPT = "exempt"
    """No reward applies to the sample (`Score.applies`): it has no score, and the advantage 0."""
    TIMED_OUT = "timed_out"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of a prompt source: what is asked, and what a reward needs to judge the answer.

    A source makes it, and everything in it can be written as JSON.

        >>> from rlcore import Prompt
        >>> Prompt(prompt_id="sums:7", text="1+1=", label="2").label
        '2'
    """

    prompt_id: str
    """Its name, which no other prompt of the set has. Seeds and cursors depend on it."""
    text: str | Messages
    """What the policy reads: a text as it is, or messages, which the model's chat template renders."""
    label: Json = None
    """What a reward compares the answer with. The policy never sees it."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """Whatever else the row has, for rewards, generators and environments."""
    responses: tuple[str | Messages, ...] = ()
    """Those that the data give, to train on: one, or (chosen, rejected). Each is a text, or the messages that
    follow those of `text`. Of these the assistant's are trained on unless they say `"train": false`.
    """
    tools: tuple[Mapping[str, Json], ...] = ()
    """Descriptions of functions (JSON schema), which the chat template shows."""
    chat_template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Further variables of the template, such as `enable_thinking`."""


EVALUATION, BASELINE = "eval-", "greedy-"
"""How the rollout ids of evaluations begin, and of the greedy responses whose reward is a baseline."""

RECORDED = -1
"""The version of tokens that other weights sampled than any of this run. They are never too old."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """From response token `start` on, tokens were sampled with weight version `version`.

    `policy`: the one that sampled them (`Request.policy`); empty: the run's own policy.
    """

    start: int
    version: int
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a reward says of one sample.

    A number that is not finite, or a wrong length, fails the sample.

        >>> from rlcore import Score
        >>> Score(value=1.5, parts={"right": 1.0, "short": 0.5}).value
        1.5
    """

    value: float
    """The scalar reward. Filters, and estimators that compare whole responses, read it."""
    per_token: tuple[float, ...] | None = None
    """Rewards of the tokens, one for each of `Sample.response_ids`. Estimators of returns read them instead
    of `value`, and they need not add up to it. One on a masked token counts for the last live token before
    it.
    """
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts. The mean of each is logged as `reward/<name>`."""
    applies: bool = True
    """False: the reward does not apply to the sample. The value counts for nothing, in no mean either."""


_PACKED: Mapping[str, type[Packed[Any]]] = {
    "response_ids": PackedInts,
    "loss_mask": PackedFlags,
    "log_probs": PackedFloats,
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One trajectory. Tokens in, tokens out: the response is never decoded and tokenised again.

    core makes it with status PENDING, without a response. The generator returns a copy with one (`but`).
    Rewards and filters read that copy, and `rlcore.TrainBatch` is made of it. A response token is *live* if
    its mask is 1: the policy sampled it, and is trained on it.

    `response_ids`, `loss_mask` and `log_probs` have one entry for each response token. core refuses other
    lengths as a fault of the generator (`PluginError`), and draws the prompt again. Give them as tuples. They
    are held packed (`PackedInts` and its siblings), which behave as tuples do.

        >>> from rlcore import GenerationStatus, Prompt, Sample, Span
        >>> prompt = Prompt(prompt_id="sums:7", text="1+1=", label="2")
        >>> pending = Sample(prompt=prompt, prompt_ids=(17, 11, 29), group_id=5, index=0, rollout_id="5.0")
        >>> answered = pending.but(
        ...     response_ids=(18, 1),
        ...     loss_mask=(1, 1),
        ...     log_probs=(-0.25, -0.5),
        ...     text="2",
        ...     spans=(Span(start=0, version=3),),
        ...     status=GenerationStatus.COMPLETED,
        ... )
        >>> answered.token_versions
        (3, 3)
    """

    prompt: Prompt
    """The row that it answers."""
    prompt_ids: tuple[int, ...]
    """What the engine reads. A generator may change it: tools add their descriptions."""
    group_id: int
    """The number of the draw, the same for all siblings."""
    index: int
    """Its place among the siblings, from 0."""
    rollout_id: str
    """The trajectory's id. If a generator returns one trajectory in several samples, all keep it."""
    attempt: int = 0
    """How often its prompt's generation was tried before."""
    seed: int = 0
    """For the engine's sampling and for any chance in a generator: 0 to 2**31 - 1. It depends on the run's
    seed, the prompt, its epoch, `index` and `attempt`, so a run can be repeated.
    """
    response_ids: TokenIds = ()
    """The tokens after the prompt: the policy's, its stop token included, and those of tools in between."""
    loss_mask: TokenMask = ()
    """1: the policy sampled this token. 0: a tool or the environment wrote it, or a filter left it out."""
    log_probs: TokenFloats = ()
    """In nats, as those of `rlcore.Completion`; 0.0 where the mask is 0. A response that the data gave has
    none.
    """
    text: str = ""
    """What rewards judge: the response without special tokens; of several turns, what the generator takes for
    the answer.
    """
    spans: tuple[Span, ...] = ()
    """Which weights sampled which tokens: the first starts at 0, and later ones after it. Copy those of the
    completions. A generated sample needs one; a response that the data gave has none.
    """
    status: GenerationStatus = GenerationStatus.PENDING
    """Set by the generator."""
    reward_status: RewardStatus = RewardStatus.PENDING
    """Set by core, or by a generator that scores its samples itself."""
    score: Score | None = None
    """There if `reward_status` is SCORED."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the batch, by name: a number, or one entry for each response token, which may be a
    row of numbers. Floats become float32 and integers int64. Others are declared (`GeneratorConfig.columns`).
    All samples of a batch must have the same names.
    """
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """What a generator tells the reward, beside that of the prompt. core adds `reward_error`: why there is no
    score.
    """
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What a generator says of the trajectory. The mean of each is logged as `generator/<name>`."""
    failure: str | None = None
    """Why a FAILED one failed: a short identifier, counted as `rollout/failed/<failure>`."""
    engine_columns: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The columns of the last `rlcore.Completion`, which read all before it. A reward gets none."""

    def __post_init__(self) -> None:
        # By its dictionary: the dataclass is frozen.
        pack(self.__dict__, _PACKED)

    def but(self, **changes: Any) -> "Sample":
        """`dataclasses.replace`, ten times as fast: a step of many short responses makes thousands."""
        assert changes.keys() <= self.__dict__.keys(), f"of {sorted(changes)} not all are fields"
        pack(changes, _PACKED)
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    @property
    def is_aside(self) -> bool:
        """Whether it is one of an evaluation, or a baseline's: nothing that is trained on."""
        return self.rollout_id.startswith((EVALUATION, BASELINE))

    @property
    def policies(self) -> frozenset[str]:
        """The policies that sampled live tokens, of which there may be one."""
        ends = [*(span.start for span in self.spans), len(self.response_ids)][1:]
        runs = zip(self.spans, ends, strict=True)
        return frozenset(span.policy for span, end in runs if any(self.loss_mask[span.start : end]))

    @property
    def policy(self) -> str:
        """The name of the policy that is trained on it (`[policy.NAME]`); empty: the run's own.

        Without live tokens, the one that sampled it all the same, which may be none of the run's.
        """
        return next(iter((*self.policies, *(span.policy for span in self.spans))), "")

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
    """The samples of one draw of a prompt. Filters judge it."""

    group_id: int
    """The number of the draw: a prompt that is drawn again has another one."""
    prompt: Prompt
    samples: tuple[Sample, ...]
    """In the order of their `index`. There may be more than `--group-size`: a generator may split one."""
    epoch: int = 0
    """The pass over the prompts in which it was drawn, from 0."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `top_k=0`, `top_p=1` and `min_p=0` leave the distribution whole.

    A generator finds the run's in `ctx.sampling`. To change something for one request, pass a copy
    (`dataclasses.replace`) to `ctx.complete`.
    """

    max_tokens: int
    """The longest response, in tokens."""
    temperature: float = 1.0
    """0: the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    """Texts that end a response. The text of the completion ends before them, and its tokens include them."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, beside the model's own."""
