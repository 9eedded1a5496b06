"""What a plugin of kind `generator` implements, and what it is given."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from rlcore.api.errors import PluginError, described
from rlcore.api.packed import Packed, PackedFloats, PackedInts, TokenFloats, TokenIds, pack
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling, Span

SEED_BITS = 63
"""Seeds of requests are below 2**63."""
_PACKED: Mapping[str, type[Packed[Any]]] = {"token_ids": PackedInts, "log_probs": PackedFloats}
_STATUS: Mapping[str, GenerationStatus] = {
    "stop": GenerationStatus.COMPLETED,
    "length": GenerationStatus.TRUNCATED,
    "abort": GenerationStatus.ABORTED,
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to an engine for `n` completions of one prompt. The engine computes the prompt once.

    `input_ids` may be given as a tuple; it is held packed.

        >>> from dataclasses import replace
        >>> from rlcore import Request, Sampling
        >>> request = Request(input_ids=(5, 6), sampling=Sampling(max_tokens=8), n=4, seed=0, rid="3.0-0")
        >>> replace(request, session="1/16").input_ids
        PackedInts([5, 6])
    """

    input_ids: TokenIds
    """The prompt: for a later turn, the ids of all before it."""
    sampling: Sampling
    """How tokens are drawn."""
    n: int = 1
    """The number of completions. Completion i draws with the seed `seed + i`."""
    seed: int = field(default_factory=lambda: secrets.randbits(SEED_BITS))
    """The seed of the first completion; random by default."""
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A name that no other request under way has, for the engine and the trace; random by default."""
    session: str | None = None
    """"NAME/N" asks the engine to begin the N requests of that name together, so that it computes the same
    batches in every run. An engine that cannot ignores it.
    """
    media: tuple[str, ...] = ()
    """Images, video or sound of the prompt, not by value: the hash of the content of each. An engine that
    cannot read them refuses the request.
    """
    policy: str = ""
    """The name of the policy that answers: another one of the run (`[policy.NAME]`), or one that the
    engine was started with; it refuses any other. Empty: the run's own policy.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.seed, SupportsIndex):  # an engine would draw a seed of its own
            raise PluginError(f"The seed of a request is {described(self.seed)}; expected an integer.")
        # By its dictionary: the dataclass is frozen.
        pack(self.__dict__, {"input_ids": PackedInts})


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer of an engine, from `GenerationContext.complete`.

    `rlcore_toolkit.answered(sample, completion)` makes a sample of it. `token_ids` and `log_probs` may be
    given as tuples; like those of a `Sample` they are held packed.

        >>> from rlcore import Completion, Span
        >>> done = Completion(
        ...     token_ids=(18, 1),
        ...     log_probs=(-0.25, -0.5),
        ...     text="2",
        ...     finish_reason="stop",
        ...     spans=(Span(start=0, version=3),),
        ...     prompt_tokens=4,
        ... )
        >>> done.status
        <GenerationStatus.COMPLETED: 'completed'>
    """

    token_ids: TokenIds
    """What was sampled, the stop token included."""
    log_probs: TokenFloats
    """In nats, one for each of `token_ids`: of the policy at the sampling temperature, before top-p, top-k or
    min-p cut the distribution.
    """
    text: str
    """The tokens as text, without special tokens; a stop string is in it."""
    finish_reason: str
    """Why it ended: "stop", "length" or "abort"."""
    spans: tuple[Span, ...]
    """Which weights sampled which of `token_ids`."""
    prompt_tokens: int
    """Tokens of the prompt."""
    engine_columns: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Columns of the batch that the engine gives, by name, for every token of prompt and answer except the
    last, which it never reads (`rlcore.REPLAYS`). Base64 of their bytes, which a trainer reads. Empty where
    nobody asked for one.
    """

    def __post_init__(self) -> None:
        # By its dictionary: the dataclass is frozen.
        pack(self.__dict__, _PACKED)

    @property
    def status(self) -> GenerationStatus:
        """The status of a sample that ends with this answer: COMPLETED, TRUNCATED or ABORTED."""
        return _STATUS[self.finish_reason]


class GenerationContext(Protocol):
    """What a generator may use. Lives in the event loop of the generator, in the driver or in a
    rollout worker; one for all samples of a rollout."""

    @property
    def sampling(self) -> Sampling:
        """How this rollout samples. In an evaluation: as that set says, greedily by default."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and response together that engine and trainer take."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's, for `rlcore_toolkit.render_prompt` and its siblings: chat templates, tool calls."""

    async def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        n: int = 1,
        seed: int,
        rid: str,
        sampling: Sampling | None = None,
        policy: str = "",
    ) -> Sequence[Completion]:
        """The short form of `generate`: `n` completions of one prompt.

        `seed`: usually `sample.seed`, and another one for each further request. `sampling`: in place of the
        context's. `policy`: as in a `Request`.
        """

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The completions of a request, in the order of their seeds.

        An engine that is lost is replaced meanwhile, and another one answers. Raises `EngineError` if none
        can, or if the engine refuses the request. Let it pass: core knows what to do with either.
        """

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of one group with `reward_status` set by the run's reward, and `score` where it is
        SCORED.
        """

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""


class Generator(Protocol):
    """Kind `generator`: drives the engine through one trajectory.

    `factory(config)` builds it before rlcore starts any process, and once more in each rollout worker. The
    factory raises `UserError` for what the user can mend, and starts nothing itself. A function
    `async def generate(ctx, sample)` can be a generator too.

        >>> from rlcore import Config, GenerationContext, Sample
        >>> from rlcore_toolkit import answered
        >>> class OneTurn:
        ...     def __init__(self, config: Config) -> None: ...
        ...     async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        ...         rid = f"{sample.rollout_id}-{sample.attempt}"
        ...         [done] = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=rid)
        ...         return answered(sample, done)
    """

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """`sample` with response, mask, log-probs, spans and status filled in.

        Called once for each sample of a group, for many at a time in one event loop: it must await, and never
        block. It has `--generator-timeout` seconds. A sample that comes ABORTED or FAILED is generated once
        more, with another seed.

        A list of samples is one trajectory in pieces; all keep the `rollout_id`. The live tokens of each are
        of one policy, which is trained on it. A generator may score its
        samples. If all samples of a group come SCORED, the run's reward is not asked.

        An exception counts as a crash (`rollout/crashed`): the whole group is generated again,
        `--max-attempts` times in all. So does an invalid sample, such as one with fewer log-probs than
        tokens. For a failure that is not the generator's fault, return a sample with the status FAILED and a
        `failure`.
        """


@runtime_checkable
class CheckingGenerator(Protocol):
    """A generator that cannot answer every prompt, or needs something of the tokenizer."""

    def check(self, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
        """Raises `UserError` if it cannot. Called with each set of prompts, before any process starts."""


@runtime_checkable
class ClosableGenerator(Protocol):
    """A generator that holds processes or connections."""

    async def close(self) -> None:
        """Release them. Called in the event loop of `generate` when the run ends, also after an error."""


@runtime_checkable
class GroupGenerator(Protocol):
    """A generator that makes all samples of a group at once, for example by one request with `n`."""

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """The group's samples, filled in, in their order, one for each. Called in place of `generate`.

        In an evaluation, and where a sample is tried again, the group may have one sample.
        """


class GenerationClient(Protocol):
    """An engine that answers: `rlcore.EngineClient`."""

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The completions of a request. Raises `EngineError` if the engine cannot give them."""

    async def abort(self) -> None:
        """End every request of the engine. Each answers with the tokens that it has sampled so far."""


class GroupScorer(Protocol):
    """Rewards in their own processes: `rlcore.rollout.rewards.RewardPool`."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The siblings of one group with `reward_status` and `score` set; a failure is a status."""
