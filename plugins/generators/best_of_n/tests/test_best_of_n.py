"""The generator `best_of_n`: which candidate is kept, and what is said of the others."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rlcore import EngineContext, GenerationStatus, Generator, Prompt, RewardStatus, Sample, Sampling
from rlcore_best_of_n.config import BestOfNConfig
from rlcore_best_of_n.generator import BestOfN
from rlcore_best_of_n.plugin import rlcore_generators
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.parts import part_of
from rlcore_testing.token_engine import CountingReward, TokenEngine

SAID = ("aa", "abc", "abcd", "abcd", "")
SAMPLE = Sample(
    prompt=Prompt(prompt_id="p", text="?"), prompt_ids=(63,), group_id=0, index=0, rollout_id="0.0"
)
SAMPLING = Sampling(max_tokens=9)


class TestConformance(GeneratorConformance):
    def generator(self) -> Generator:
        return BestOfN(BestOfNConfig(n=3))


class Unsure(CountingReward):
    """Has no score for a text, or for none at all."""

    def __init__(self, *unscored: str) -> None:
        self._unscored = unscored

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        return [
            replace(one, reward_status=RewardStatus.FAILED, score=None) if one.text in self._unscored else one
            for one in await super().score(samples)
        ]


async def best(
    *, n: int = 4, by: str = "reward", unscored: tuple[str, ...] = (), rollout_id: str = "0.0"
) -> tuple[Sample, TokenEngine]:
    engine = TokenEngine(lambda prompt, seed: SAID[seed])
    ctx = EngineContext(engine, engine.tokenizer, SAMPLING, Unsure(*unscored))
    generator = BestOfN(BestOfNConfig.model_validate({"n": n, "by": by}))
    return await generator.generate(ctx, replace(SAMPLE, rollout_id=rollout_id)), engine


async def test_the_highest_reward_is_kept_and_the_first_of_equals() -> None:
    found, engine = await best()
    assert found.text == "abcd"
    assert found.status is GenerationStatus.COMPLETED
    assert found.metrics == {
        "candidates": 4,
        "tokens_not_kept": 3 + 4 + 5,
        "best_minus_mean": 5 - (2 + 4 + 5 + 5) / 4,
    }
    assert engine.requests == 1
    assert found.reward_status is RewardStatus.PENDING, "the run scores what is kept among its siblings"


async def test_the_highest_mean_log_prob_is_kept() -> None:
    found, engine = await best(by="log_prob")
    means = {}
    for said in SAID[:4]:
        ids = (*said.encode(), 257)
        drawn = [engine.drawn[(63, *ids[:place])] for place in range(len(ids))]
        values = [one.log_prob for place, step in enumerate(drawn) for one in step if one.token == ids[place]]
        means[said] = sum(values) / len(values)
    assert found.text == max(means, key=lambda said: means[said])
    candidates = [means[said] for said in SAID[:4]]
    gain = max(candidates) - sum(candidates) / len(candidates)
    assert found.metrics["best_minus_mean"] == pytest.approx(gain), "means, and not sums"


async def test_a_candidate_without_a_score_is_not_kept() -> None:
    found, _ = await best(unscored=("abcd",))
    assert found.text == "abc"
    assert found.metrics["candidates"] == 2


async def test_without_any_score_the_sample_fails() -> None:
    found, _ = await best(unscored=SAID)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, "no_candidate_scored")


@pytest.mark.parametrize("rollout_id", ["eval-0.0", "greedy-0.0"])
async def test_evaluation_has_one_candidate(rollout_id: str) -> None:
    found, engine = await best(rollout_id=rollout_id)
    assert found.text == "aa"
    assert len(engine.drawn) == 3


def test_the_component_builds_the_generator() -> None:
    (component,) = rlcore_generators()
    assert isinstance(part_of(component).build(), BestOfN)
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        BestOfNConfig(n=1)
