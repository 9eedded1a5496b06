"""A small engine and reward in this process, and a producer around them."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlcore.api.config import fields_of
from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion, Request
from rlcore.api.producer import ProducerContext, Rollout
from rlcore.api.reward import Verdict
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Group, Json, Prompt, RewardStatus, Sample, Sampling, Score, Span
from rlcore.data.cursors import cursor_of
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.engines.client_http import RefusedError
from rlcore.rollout.context import sampling_of
from rlcore.rollout.evaluate import EvalResult, Evaluation, Evaluator
from rlcore_sampling.asynchronous import AsynchronousRollouts
from rlcore_sampling.baseline import greedy
from rlcore_sampling.sampling_producer import SamplingProducer
from rlcore_sampling.synchronous import SynchronousRollouts
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn

EOS = 10


class Digits:
    """A tokenizer of digits."""

    eos_token: str | None = "$"
    eos_token_id: int | None = EOS

    def __len__(self) -> int:
        return EOS + 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(str(number) for number in token_ids if number != EOS)

    def apply_chat_template(self, conversation: list[Mapping[str, Json]], **options: Any) -> Any:
        raise ValueError("no template")


@dataclass
class Engine:
    """Answers with digits drawn from the seed, or with the prompt where it is greedy; finishes out of order.

    `endings`: rid → finish reason, or the error that the request gets. `hold`: requests whose rid
    starts with one of `held` wait for it; those that are aborted meanwhile come back with two tokens.
    """

    version: int = 0
    endings: dict[str, str | Exception] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    sessions: list[str | None] = field(default_factory=list)
    all_refused: Exception | None = None
    hold: asyncio.Event | None = None
    held: tuple[str, ...] = ("",)
    aborts: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: Request) -> list[Completion]:
        self.asked.append((request.rid, request.n))
        self.sessions.append(request.session)
        if self.hold is not None and request.rid.startswith(self.held) and not await self._held(self.hold):
            return [self._cut(answer) for answer in self._answers(request, "abort")]
        for _ in range(request.seed % 5):
            await asyncio.sleep(0)
        ending = self.all_refused or self.endings.get(request.rid, "stop")
        if isinstance(ending, Exception):
            raise ending
        return self._answers(request, ending)

    def _answers(self, request: Request, ending: str) -> list[Completion]:
        ids, sampling = request.input_ids, request.sampling
        return [self._answer(ids, sampling, request.seed + i, ending) for i in range(request.n)]

    async def abort(self) -> None:
        self.aborts.set()
        self.aborts = asyncio.Event()

    async def _held(self, hold: asyncio.Event) -> bool:
        """Whether it is let go, rather than aborted."""
        waits = [asyncio.ensure_future(event.wait()) for event in (hold, self.aborts)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        return hold.is_set()

    @staticmethod
    def _cut(answer: Completion) -> Completion:
        ids = answer.token_ids[:2]
        text = "".join(str(number) for number in ids)
        return replace(answer, token_ids=ids, log_probs=answer.log_probs[:2], text=text)

    def _answer(self, ids: Sequence[int], sampling: Sampling, seed: int, ending: str) -> Completion:
        drawn = [random.Random(seed).randrange(10) for _ in ids]
        digits = tuple(ids) if sampling.temperature == 0 else tuple(drawn)
        return Completion(
            token_ids=(*digits, EOS),
            log_probs=(-0.5,) * (len(digits) + 1),
            text="".join(map(str, digits)),
            finish_reason=ending,
            spans=(Span(start=0, version=self.version),),
            prompt_tokens=len(ids),
        )


@dataclass
class Rewards:
    """The last digit over ten. `unscored`: group id → statuses of its first tries."""

    unscored: dict[int, list[RewardStatus]] = field(default_factory=dict)
    calls: Counter[int] = field(default_factory=Counter)

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        group_id = samples[0].group_id
        self.calls[group_id] += 1
        await asyncio.sleep(0)
        left = self.unscored.get(group_id)
        if left:
            return [replace(samples[0], reward_status=left.pop(0)), *map(self._scored, samples[1:])]
        return [self._scored(sample) for sample in samples]

    def _scored(self, sample: Sample) -> Sample:
        value = int(sample.text[-1]) / 10
        return replace(
            sample, reward_status=RewardStatus.SCORED, score=Score(value=value, parts={"last": value})
        )


class KeepOdd:
    """Drops groups with an even id."""

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=group) if group.group_id % 2 else Verdict(group=None, reason="even")


def ids(rollout: Rollout) -> list[int]:
    """The ids of its groups."""
    return [group.group_id for group in rollout.groups]


class World:
    """A producer of 4 prompts with 3 samples each on `engines`, unless told otherwise."""

    def __init__(self, prompts: int | list[Prompt] = 20, engines: int = 1, **options: Any) -> None:
        self.tokenizer = Digits()
        self.engines = [Engine() for _ in range(engines)]
        self.rewards: Any = Rewards()
        texts = [f"{i:03d}" for i in range(prompts)] if isinstance(prompts, int) else []
        self.prompts = [Prompt(prompt_id=f"p{i}", text=text, label=text) for i, text in enumerate(texts)]
        self.prompts += prompts if isinstance(prompts, list) else []
        settings = {"prompts_per_step": 4, "group_size": 3, "max_refills": 2, "max_prompt_tokens": 3}
        known = {name: options.pop(name) for name in list(options) if name in fields_of(RunConfig)}
        self.run = RunConfig.of(**{**settings, **known})
        self.options = options
        self.version = 0
        self.producer: Any = self.new_producer()

    @property
    def engine(self) -> Any:
        return self.engines[0]

    def new_producer(self) -> SamplingProducer:
        """Another producer on the same engines, as after a restart."""
        given = {
            "run": self.run,
            "cursor": cursor_of(self.options.get("prompts", self.prompts), self.run),
            "encoder": PromptTokenizer(self.tokenizer, self.run.sampling.max_prompt_tokens),
            "clients": self.engines,
            "generator": SingleTurn(SingleTurnConfig()),
            "rewards": self.rewards,
        }
        options = {name: value for name, value in self.options.items() if name != "prompts"}
        how = AsynchronousRollouts if self.run.asynchrony.is_asynchronous else SynchronousRollouts
        return how(ProducerContext(**{**given, **options}))

    def publish(self, version: int) -> None:
        """What the trainer does after a step."""
        for engine in self.engines:
            engine.version = version
        self.version = version
        self.producer.published(version)

    async def evaluate(self, prompts: Sequence[Prompt], **settings: Any) -> EvalResult:
        """One greedy answer to each of `prompts`, by exact match, unless told otherwise."""
        known = {
            "name": "set",
            "prompts": prompts,
            "generator": self.options.get("generator", SingleTurn(SingleTurnConfig())),
            "scorer": self.rewards,
            "sampling": greedy(sampling_of(self.run)),
            "exact": True,
        }
        evaluator = Evaluator(
            run=self.run,
            encoder=PromptTokenizer(self.tokenizer, self.run.sampling.max_prompt_tokens),
            clients=self.engines,
            sets=[Evaluation(**{**known, **settings})],
            in_step=not self.run.asynchrony.is_asynchronous,
        )
        return (await evaluator.evaluate(self.version))["set"]

    @staticmethod
    def refused() -> RefusedError:
        return RefusedError("The engine refused the request.", 400)

    @staticmethod
    def dead() -> EngineError:
        return EngineError("The engine cannot be reached.")
