"""What core does for generators: functions, failures and metrics."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from templates import shipped, tokenizer

from rlcore import answer_of
from rlcore.api import part
from rlcore.api.config import Config
from rlcore.api.errors import DataError, NotFiniteError, PluginError, RlcoreError
from rlcore.api.generation import ClosableGenerator, GenerationContext, Generator, GroupGenerator
from rlcore.api.part import Part, part_name
from rlcore.api.run_config import RunConfig
from rlcore.api.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Sampling, Score, Span
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.rollout.context import EngineContext
from rlcore.rollout.draw import Draw, GroupOutcome, Versions, new_samples
from rlcore.rollout.generators import build_generator, check_generated, check_policies
from rlcore.rollout.pipeline import GroupPipeline
from rlcore_sampling.tally import Tally
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine
from rlcore_toolkit import answered

HERE = __name__
SCORED = RewardStatus.SCORED
SPAN_OF_TEXT = Span(start=0, version="0")  # type: ignore[arg-type]  # on purpose


async def one_answer(ctx: GenerationContext, sample: Sample) -> Sample:
    (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
    return replace(answered(sample, done), metrics={"turns": 1.0})


async def unseeded(ctx: GenerationContext, sample: Sample) -> Sample:
    (done,) = await ctx.complete(sample.prompt_ids, seed=None, rid="")  # type: ignore[arg-type]  # on purpose
    return answered(sample, done)


async def endless(ctx: GenerationContext, sample: Sample) -> Sample:
    await asyncio.Event().wait()
    return sample


async def never(ctx: GenerationContext, sample: Sample) -> Sample:
    return replace(sample, status=GenerationStatus.FAILED, failure="no_service")


def broken(config: Config) -> Generator:
    raise RuntimeError("no licence")


def built(name: str) -> Generator:
    return build_generator(Part(name=name, factory=f"{HERE}:{name}"))


class TestFunction(GeneratorConformance):
    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        monkeypatch.setitem(sys.modules, HERE, sys.modules[type(self).__module__])

    def generator(self) -> Generator:
        return built("one_answer")


def context(engine: TokenEngine) -> EngineContext:
    return EngineContext(engine, engine.tokenizer, Sampling(max_tokens=50), CountingReward())


def pipeline(engine: TokenEngine, name: str) -> GroupPipeline:
    encoder, run = PromptTokenizer(engine.tokenizer, 50), RunConfig.of(generator_timeout=0.05)
    return GroupPipeline(run=run, encoder=encoder, generator=built(name), rewards=CountingReward())


async def test_a_function_is_a_generator_and_nothing_else() -> None:
    generator = built("one_answer")
    assert not isinstance(generator, GroupGenerator | ClosableGenerator)
    with pytest.raises(PluginError, match="'broken' failed: RuntimeError: no licence"):
        built("broken")


async def test_a_seed_that_is_none_is_refused() -> None:
    pending = sample_of(prompt_ids=(1,), seed=3)
    with pytest.raises(PluginError, match="The seed of a request is None; expected an integer"):
        await built("unseeded").generate(context(TokenEngine(lambda prompt, seed: "yes")), pending)


class Empty:
    def __init__(self, config: Config) -> None: ...


def test_a_part_without_its_method_is_refused() -> None:
    with pytest.raises(PluginError, match="The generator 'Empty' is an Empty without a method 'generate'"):
        built("Empty")


def test_a_built_part_is_named_as_users_chose_it() -> None:
    assert part_name(Empty(Config())) == f"{HERE}.Empty"
    assert part_name(part.built(Part(name="mine", factory=f"{HERE}:Empty"), "filter")) == "'mine'"
    assert part_name(part.built(Part(name="mine", factory="builtins:list"), "filter")) == "builtins.list"


async def test_the_header_of_a_template_is_no_part_of_an_answer() -> None:
    """Harmony's words stay in the text, between special tokens, which are left out of it."""
    by = tokenizer(shipped("gptoss"))
    says = "<|channel|>analysis<|message|>so?<|end|><|start|>assistant<|channel|>final<|message|>yes"

    class Says:
        def __init__(self, text: str) -> None:
            self._ids = tuple(by.encode(text, add_special_tokens=False))

        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            size = len(self._ids)
            return sample.but(
                response_ids=self._ids,
                loss_mask=(1,) * size,
                log_probs=(0.0,) * size,
                text=by.decode(self._ids, skip_special_tokens=True),
                spans=(Span(start=0, version=0),),
                status=GenerationStatus.COMPLETED,
            )

    draw = Draw(group_id=0, prompt=Prompt(prompt_id="p", text="?"), epoch=0)
    fresh, nobody = new_samples(draw, (63,), count=1, run_seed=0, prefix=""), CountingReward()
    for text, answer in ((says, "yes"), (says.replace("final", "critic"), "analysisso?assistantcriticyes")):
        maker = GroupPipeline(
            run=RunConfig.of(), encoder=PromptTokenizer(by, 50), generator=Says(text), rewards=nobody
        )
        ctx = EngineContext(TokenEngine(lambda prompt, seed: ""), by, Sampling(max_tokens=99), nobody)
        made = await maker.generate(ctx, draw, fresh, lambda: Versions(oldest=0, newest=0))
        [sample] = made.group.samples
        assert answer_of(sample) == answer


async def test_failures_and_metrics_are_counted() -> None:
    engine, prompt = TokenEngine(lambda prompt, seed: "yes"), Prompt(prompt_id="p", text="?")
    draw, tally = Draw(group_id=0, prompt=prompt, epoch=0), Tally()
    fresh = new_samples(draw, (63,), count=2, run_seed=0, prefix="")
    for name in ("one_answer", "never", "endless"):
        maker = pipeline(engine, name)
        made = await maker.generate(context(engine), draw, fresh, lambda: Versions(oldest=0, newest=0))
        tally.add(await maker.score(made))
    found = tally.metrics()
    assert found["generator/turns"] == 1
    assert found["rollout/failed/no_service"] == 4, "two samples, two tries"
    assert found["rollout/failed/timed_out"] == 4
    assert found["rollout/failed"] == 8
    assert found["rollout/groups_dropped/failed"] == 2


async def test_the_reward_is_not_asked_about_a_group_that_comes_scored() -> None:
    sample = new_samples(
        Draw(group_id=0, prompt=Prompt(prompt_id="p", text="?"), epoch=0),
        (63,),
        count=1,
        run_seed=0,
        prefix="",
    )[0]
    own = replace(sample, reward_status=RewardStatus.SCORED, score=Score(value=0.5))

    def outcome(*samples: Sample) -> GroupOutcome:
        group = Group(group_id=0, prompt=sample.prompt, samples=samples)
        return GroupOutcome(group=group, reason=None, aborted=0, failed=0, generated=0.0)

    maker = pipeline(TokenEngine(lambda prompt, seed: "yes"), "one_answer")
    assert (await maker.score(outcome(own, own))).group.samples == (own, own)
    both = (await maker.score(outcome(own, sample))).group.samples
    assert [one.score for one in both] == [Score(value=0.0)] * 2, "siblings are judged together"


def of_three(index: int = 0, **changes: Any) -> Sample:
    asked = sample_of(index=index)
    sound = {
        "response_ids": (1, 2),
        "loss_mask": (1, 0),
        "log_probs": (-1.0, -1.0),
        "spans": (Span(start=0, version=0),),
    }
    return replace(asked, status=GenerationStatus.COMPLETED, **{**sound, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"response_ids": (1, 9)}, PluginError, "with the token 9; expected ids of the model, 0 to 8"),
        ({"prompt_ids": (1, 9)}, PluginError, "with the token 9; expected ids of"),
        ({"prompt_ids": (2**40,)}, PluginError, "with prompt_ids that are none .*; expected a tuple"),
        ({"log_probs": (math.nan, -1.0)}, NotFiniteError, "with log-probs that are not finite"),
        ({"loss_mask": (2, -1)}, PluginError, r"with \[-1, 2\] in its loss_mask; expected 0 and 1"),
        ({"spans": None}, PluginError, "with None as its spans; expected"),
        ({"spans": ((0, 0),)}, PluginError, r"with the spans \(\(0, 0\),\); expected Spans of whole numbers"),
        ({"spans": (SPAN_OF_TEXT,)}, PluginError, "with .* version='0'.*; expected Spans"),
        ({"reward_status": SCORED}, PluginError, "with the reward_status SCORED, while None is no Score"),
        ({"reward_status": SCORED, "score": Score(value=math.nan)}, PluginError, "with .* while .* nan"),
        ({"extras": None}, PluginError, "with None as its extras; expected"),
        ({"metrics": {"a": np.zeros(2)}}, PluginError, "with a ndarray as its metric 'a'; expected"),
        ({"metadata": {"a": lambda: 1}}, PluginError, "with metadata or extras that cannot be pickled"),
        ({"failure": ["no_service"]}, PluginError, "with a list as its failure; expected"),
    ],
)
def test_an_odd_sample_of_a_group_is_named(
    changes: dict[str, Any], error: type[RlcoreError], message: str
) -> None:
    made = [[of_three()], [of_three(1, **changes)], [of_three(2)]]
    with pytest.raises(error, match=f"The generator odd returned sample 0.1 {message}"):
        check_generated("odd", made, [of_three(place) for place in range(3)], vocabulary=9)


def test_a_log_prob_that_is_not_trained_on_may_be_anything() -> None:
    made = [[of_three()], [of_three(1, log_probs=(-1.0, math.nan))]]
    check_generated("even", made, [sample for [sample] in made], vocabulary=9)


def test_prompts_name_the_policies_of_the_run() -> None:
    names: list[Any] = ["critic", None, ""]
    prompts = [Prompt(prompt_id=f"row-{n}", text="?", metadata={"who": n_}) for n, n_ in enumerate(names)]
    config = SingleTurnConfig(policy_key="who")
    assert [config.policy_of(prompt) for prompt in prompts] == names
    check_policies(config, ["critic"], prompts, trains=True)
    check_policies(config, ["critic"], prompts[1:], trains=False)
    check_policies(Config(), ["critic"], [], trains=True)
    with pytest.raises(DataError, match="'row-0' names the policy 'critic'; expected one of 'judge'"):
        check_policies(config, ["judge"], prompts, trains=False)
    with pytest.raises(DataError, match="None of the first 2 prompts names a policy; expected"):
        check_policies(config, ["critic"], prompts[1:], trains=True)


def test_a_frozen_adapter_may_sample_what_is_not_trained_on() -> None:
    frozen = (Span(start=0, version=0, policy="frozen"),)
    masked = of_three(1, spans=frozen, loss_mask=(0, 0), log_probs=(0.0, 0.0))
    check_generated("even", [[masked]], [masked], vocabulary=9)
    assert (masked.policies, masked.policy) == (frozenset(), "frozen")
    live = of_three(1, spans=frozen)
    with pytest.raises(PluginError, match="with live tokens of 'frozen'"):
        check_generated("odd", [[live]], [live], vocabulary=9)
