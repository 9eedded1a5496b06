"""The suites of rewards, filters, sources and generators: each property fails for a part that lacks it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from broken_parts import all_fails, lacks

from rlcore.api.config import Config
from rlcore.api.errors import ConfigError
from rlcore.api.generation import GenerationContext
from rlcore.api.part import Part, RewardPart
from rlcore.api.part_config import FilterConfig, RewardConfig
from rlcore.api.reward import Verdict
from rlcore.api.sources import Prompts
from rlcore.api.types import GenerationStatus, Group, Json, Prompt, Sample, Score
from rlcore_testing.conformance import Subject
from rlcore_testing.filters import FilterConformance
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.rewards import RewardConformance
from rlcore_testing.sources import SourceConformance
from rlcore_toolkit import answered

# --- rewards -------------------------------------------------------------------------------------------

Judge = Callable[[Sequence[Sample]], list[Score]]
CALLS = itertools.count()


class UnitConfig(RewardConfig):
    value_range = (0, 1)


def right(one: Sample) -> float:
    return float(str(one.prompt.label) in one.text)


def each(value: Callable[[Sample], Any]) -> Judge:
    return lambda samples: [Score(value=value(one)) for one in samples]


def marks(samples: Sequence[Sample]) -> list[Score]:
    for one in samples:
        one.prompt.metadata["seen"] = True  # type: ignore[index] # that is the fault
    return each(right)(samples)


def credits_live_tokens_only(samples: Sequence[Sample]) -> list[Score]:
    return [Score(value=0.0, per_token=(0.5,) * sum(one.loss_mask)) for one in samples]


def credits_some(samples: Sequence[Sample]) -> list[Score]:
    return [
        Score(value=right(one), per_token=(0.1,) * len(one.response_ids) if right(one) else None)
        for one in samples
    ]


REWARDS: Mapping[str, tuple[Judge, str]] = {
    "sound": (each(right), ""),
    "random": (each(lambda one: random.random()), "it says the same again"),
    "stateful": (each(lambda one: 1 / (2 + next(CALLS))), "it says the same again"),
    "by_place": (
        lambda samples: [Score(value=place / 10) for place, _ in enumerate(samples)],
        "the scores keep the order of the samples",
    ),
    "beyond": (each(lambda one: 2.0), "each answer has a score"),
    "crashing": (each(lambda one: len(one.text.split()[0]) / 100), "an empty response has a score"),
    "by_length": (each(lambda one: 1 / len(one.response_ids)), "an empty response has a score"),
    "changing": (marks, "it leaves the samples as they are"),
    "short_credit": (credits_live_tokens_only, "tokens of a tool do not stop it"),
    "some_credit": (credits_some, "credit is given to each token"),
    "of_completed": (
        each(lambda one: 1.0 if one.status == "completed" else math.nan),
        "a truncated response has a score",
    ),
    "bad_part": (
        lambda samples: [Score(value=right(one), parts={"My part": 1.0}) for one in samples],
        "parts are those that it tells",
    ),
}


class Reward:
    """By the name in its config's place: a worker builds it by its factory."""

    judge: ClassVar[Judge]

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return type(self).judge(samples)


for _name, (_judge, _) in REWARDS.items():
    globals()[f"Reward_{_name}"] = type(f"Reward_{_name}", (Reward,), {"judge": staticmethod(_judge)})


def reward_of(name: str) -> Subject:
    factory = f"{__name__}:Reward_{name}"
    return Subject(record=None, part=Part(name=name, factory=factory, config=UnitConfig()))


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_that_lacks_a_property(name: str) -> None:
    lacks(RewardConformance.of(reward_of(name)), REWARDS[name][1])


def test_cases_and_parts_are_those_of_the_test_class() -> None:
    from rlcore_testing.rewards import Case, sample

    class Suite(RewardConformance):
        part = RewardPart(name="sound", factory=f"{__name__}:Reward_sound", config=UnitConfig())
        cases: ClassVar[Sequence[Case]] = (Case(sample("4", "4"), 1.0), Case(sample("5", "4"), 1.0))
        parts = frozenset({"hits"})

    found = all_fails(Suite)
    assert set(found) == {"each case has its score", "parts are those that it tells"}
    assert "'5': Score(value=0.0" in found["each case has its score"]
    Suite.cases = ()
    assert "gives no `cases` and no `prompts`" in all_fails(Suite)["each answer has a score"]


def test_a_reward_that_can_judge_nothing_asks_for_prompts() -> None:
    class OfRows:
        def __init__(self, config: Config) -> None:
            pass

        def score(self, samples: Sequence[Sample]) -> list[Score]:
            return [Score(value=float(one.prompt.metadata["points"])) for one in samples]

    globals()["OfRows"] = OfRows
    subject = Subject(
        record=None, part=Part(name="of_rows", factory=f"{__name__}:OfRows", config=RewardConfig())
    )
    with pytest.raises(
        ConfigError, match=r"reward 'of_rows' can judge none .*KeyError: 'points'.* by --data FILE"
    ):
        RewardConformance.of(subject)
    prompt = Prompt(prompt_id="p", text="?", label="1", metadata={"points": 3})
    assert not all_fails(RewardConformance.of(replace(subject, prompts=(prompt,))))


# --- filters -------------------------------------------------------------------------------------------

Decide = Callable[[Group], Any]


class Filters(FilterConformance):
    part = Part(name="mine", factory="nowhere:Mine", config=FilterConfig())
    decide: ClassVar[Any]

    def filter(self) -> Any:
        return Decider(self.decide)


class Decider:
    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def judge(self, group: Group) -> Verdict:
        found: Verdict = self._decide(group)
        return found


def kept(group: Group, samples: Sequence[Sample]) -> Verdict:
    return Verdict(group=replace(group, samples=tuple(samples)))


def lowers(group: Group) -> Verdict:
    return kept(group, [replace(one, score=Score(value=-1.0)) for one in group.samples])


def trains_on_everything(group: Group) -> Verdict:
    return kept(group, [replace(one, loss_mask=(1,) * len(one.loss_mask)) for one in group.samples])


def masks_without_log_probs(group: Group) -> Verdict:
    return kept(group, [replace(one, loss_mask=(0,) * len(one.loss_mask)) for one in group.samples])


def counts_in_place(group: Group) -> Verdict:
    metadata: Any = group.prompt.metadata
    metadata["seen"] = True
    return Verdict(group=group)


@pytest.mark.parametrize(
    ("decide", "missing"),
    [
        (lambda group: Verdict(group=group), ""),
        (lambda group: group, "it keeps a group or says why not"),
        (lambda group: Verdict(group=None, reason="Too bad!"), "it keeps a group or says why not"),
        (lambda group: Verdict(group=None), "it keeps a group or says why not"),
        (
            lambda group: Verdict(group=group) if next(CALLS) % 2 else Verdict(group=None, reason="odd"),
            "it says the same again",
        ),
        (counts_in_place, "it leaves the group that it got as it is"),
        (lambda group: kept(group, group.samples[::-1]), "what it keeps is of the group"),
        (lambda group: kept(group, ()), "what it keeps is of the group"),
        (
            lambda group: kept(group, [replace(one, text="better") for one in group.samples]),
            "what it keeps is of the group",
        ),
        (trains_on_everything, "it only takes tokens out of the training"),
        (masks_without_log_probs, "it only takes tokens out of the training"),
        (
            lambda group: kept(group, [replace(one, score=None) for one in group.samples]),
            "scores stay numbers",
        ),
        (lowers, "rewards fall only where the config says so"),
    ],
)
def test_a_filter_that_lacks_a_property(decide: Decide, missing: str) -> None:
    lacks(Filters.with_values(decide=staticmethod(decide)), missing)


# --- sources -------------------------------------------------------------------------------------------


def prompt(number: int, **more: Any) -> Prompt:
    return Prompt(prompt_id=f"p{number}", text=f"question {number}", label=str(number), **more)


class Source:
    """Twenty prompts, with answers and pairs, drawn in order."""

    def prompts(self) -> Prompts:
        return Prompts(train=[prompt(number) for number in range(20)], held_out={"mine": [prompt(99)]})

    def with_responses(self) -> Prompts:
        return self._given("yes")

    def with_pairs(self) -> Prompts:
        return self._given("yes", "no")

    def _given(self, *responses: str) -> Prompts:
        return Prompts(train=[replace(one, responses=responses) for one in self.prompts().train])

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> Any:
        return Walk(prompts)


class Walk:
    """Harder ones are skipped once something was learned."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.at, self.step, self.asked = 0, 1, prompts

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        first, self.at = self.at, self.at + n * self.step
        places = range(first, self.at, self.step)
        return [(self.asked[place % len(self.asked)], place // len(self.asked)) for place in places]

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        self.step = 2

    def metrics(self) -> dict[str, float]:
        return {"rollout/epoch": self.at / len(self.asked)}

    def state(self) -> dict[str, Json]:
        return {"at": self.at, "step": self.step}

    def load(self, state: Mapping[str, Json]) -> None:
        self.at, self.step = state["at"], state["step"]


class Empty(Source):
    def prompts(self) -> Prompts:
        return Prompts(train=[])


class Twins(Source):
    def prompts(self) -> Prompts:
        return Prompts(train=[prompt(1), prompt(1)])


class Shuffled(Source):
    def prompts(self) -> Prompts:
        numbers = random.sample(range(1000), 20)
        return Prompts(train=[prompt(number) for number in numbers])


class Unwritable(Source):
    def prompts(self) -> Prompts:
        return Prompts(train=[prompt(1, metadata={"when": object()})])


class ReadOnce(Source):
    """Each of its prompts can be read once."""

    def prompts(self) -> Prompts:
        return Prompts(train=Drained(super().prompts().train))


class Drained(list[Prompt]):
    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self[place] = prompt(100 + place)
        return found


class SomeAnswers(Source):
    def with_responses(self) -> Prompts:
        first, *others = super().with_responses().train
        return Prompts(train=[replace(first, responses=()), *others])


class OneAnswer(Source):
    def with_pairs(self) -> Prompts:
        return self._given("yes")


class SameTwice(Source):
    def with_pairs(self) -> Prompts:
        return self._given("yes", "yes")


class WithoutFiles(Source):
    def files(self) -> list[str]:
        return ["/nowhere/rows.jsonl"]


class Drawing(Source):
    walk: ClassVar[type[Walk]]

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> Any:
        return self.walk(prompts)


def drawing(**methods: Any) -> type[Source]:
    return type("Mine", (Drawing,), {"walk": type("MyWalk", (Walk,), methods)})


def forgets(self: Walk) -> dict[str, Json]:
    return {"at": self.at, "step": 1}


def few(self: Walk, n: int) -> list[tuple[Prompt, int]]:
    return [(one, 0) for one in self.asked[:n]]


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        (Source, ""),
        (Empty, "there are prompts"),
        (Twins, "ids are unique"),
        (Shuffled, "it says the same again"),
        (Unwritable, "labels and metadata are json"),
        (ReadOnce, "a prompt is found by its place"),
        (SomeAnswers, "right answers are given to each prompt"),
        (OneAnswer, "pairs are given to each prompt"),
        (SameTwice, "pairs are given to each prompt"),
        (WithoutFiles, "files that it reads are there"),
        (drawing(state=forgets), "a resumed run draws what the other would have drawn"),
        (drawing(state=lambda self: {"at": {1}}), "a resumed run draws what the other would have drawn"),
        (drawing(take=few), "a run gets as many as it asks for"),
        (drawing(metrics=lambda self: {}), "metrics say how far it is"),
        (
            drawing(take=lambda self, n: [(random.choice(self.asked), 0) for _ in range(n)]),
            "equal seeds draw equal prompts",
        ),
    ],
)
def test_a_source_that_lacks_a_property(source: type[Source], missing: str) -> None:
    class Suite(SourceConformance):
        def source(self) -> Any:
            return source()

    lacks(Suite, missing)


# --- generators ----------------------------------------------------------------------------------------


class OneTurn:
    """Prompt in, one response out."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        [done] = await ctx.complete(
            sample.prompt_ids, seed=sample.seed, rid=f"{sample.rollout_id}-{sample.attempt}"
        )
        return answered(sample, done)


class Retokenized(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        made = await super().generate(ctx, sample)
        ids = ctx.encode(made.text.upper())
        length = len(ids)
        return replace(made, response_ids=ids, loss_mask=(1,) * length, log_probs=(-0.1,) * length)


class Unmasked(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        made = await super().generate(ctx, sample)
        return replace(made, response_ids=(*made.response_ids, 65))


class Renamed(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        return replace(await super().generate(ctx, sample), index=sample.index + 1)


class Unseeded(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        return await super().generate(ctx, replace(sample, seed=next(CALLS)))


class Unspanned(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        return replace(await super().generate(ctx, sample), spans=())


class Endless(OneTurn):
    """Asks on where an answer was cut, whatever a response may have."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        made = await super().generate(ctx, sample)
        if made.status is not GenerationStatus.TRUNCATED:
            return made
        more = {name: getattr(made, name) * 2 for name in ("response_ids", "loss_mask", "log_probs")}
        return replace(made, **more)


class Impatient(OneTurn):
    """An answer that other weights have finished is asked for with another seed."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        made = await super().generate(ctx, sample)
        if len(made.versions) == 1:
            return made
        return await super().generate(ctx, replace(sample, seed=sample.seed + 1, attempt=sample.attempt + 1))


class Swapped(OneTurn):
    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        return [await self.generate(ctx, sample) for sample in samples[::-1]]


class Cheerful(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        return replace(await super().generate(ctx, sample), status="completed")  # type: ignore[arg-type] # a fault


class Current(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        made = await super().generate(ctx, sample)
        return replace(made, spans=made.spans[-1:])


class Greedy(OneTurn):
    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        rid = f"{sample.rollout_id}-{next(CALLS)}"
        [done] = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=rid)
        return answered(sample, done)


@pytest.mark.parametrize(
    ("generator", "missing"),
    [
        (OneTurn, ""),
        (Retokenized, "trained tokens are those that the engine sampled"),
        (Unmasked, "every response token has its mask and log prob"),
        (Renamed, "a sample keeps its ids"),
        (Unseeded, "equal seeds give equal samples"),
        (Unspanned, "spans cover the response"),
        (Endless, "a policy that never stops is truncated"),
        (Impatient, "interruptions leave no trace"),
        (Swapped, "a group made at once answers each request"),
        (Cheerful, "an answer that was aborted is not finished"),
        (Current, "each token carries the version that sampled it"),
        (Greedy, "a resumed run samples nothing again"),
    ],
)
def test_a_generator_that_lacks_a_property(generator: type[OneTurn], missing: str) -> None:
    class Suite(GeneratorConformance):
        def generator(self) -> Any:
            return generator()

    lacks(Suite, missing)


def test_a_generator_that_makes_no_samples() -> None:
    class Suite(GeneratorConformance):
        def generator(self) -> Any:
            return SimpleNamespace(generate=text)

    async def text(ctx: GenerationContext, sample: Sample) -> str:
        return "4"

    assert (
        "generate() returned '4'; expected a Sample or a list" in all_fails(Suite)["a sample keeps its ids"]
    )


def test_a_generator_that_can_answer_nothing_asks_for_a_prompt() -> None:
    class OfTasks(OneTurn):
        def __init__(self, config: Config) -> None:
            pass

        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            made = await super().generate(ctx, sample)
            if "task" in sample.prompt.metadata:
                return made
            return replace(made, status=GenerationStatus.FAILED, failure="no_task")

    globals()["OfTasks"] = OfTasks
    part = Part(name="of_tasks", factory=f"{__name__}:OfTasks", config=Config())
    subject = Subject(record=None, part=part)
    with pytest.raises(
        ConfigError, match=r"generator 'of_tasks' cannot answer .*\(no_task\); give one .* --data"
    ):
        GeneratorConformance.of(subject)
    prompt = Prompt(prompt_id="p", text="?", metadata={"task": 1})
    assert not all_fails(GeneratorConformance.of(replace(subject, prompts=(prompt,))))
