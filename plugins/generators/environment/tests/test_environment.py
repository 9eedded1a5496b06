"""The generator `environment`: turns, rewards of turns, and environments that fail."""

import asyncio
import sys
from typing import Any

import pytest

from rlcore.api.errors import ConfigError, MissingPackageError
from rlcore.api.generation import Generator
from rlcore.api.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Sampling, Score
from rlcore.rollout.batch import to_batch
from rlcore.rollout.context import EngineContext
from rlcore.rollout.score_check import checked_scores
from rlcore_environment.config import EnvironmentConfig, EnvironmentRewardConfig, EpisodesConfig
from rlcore_environment.generator import EnvironmentGenerator
from rlcore_environment.protocol import Step
from rlcore_environment.reward import EnvironmentReward
from rlcore_environment.source import Episodes
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine


class Countdown:
    """Says how many turns are left; each answer is worth its length."""

    closed = 0

    def __init__(self, turns: int = 2, fails: str = "") -> None:
        self._left = turns
        self._fails = fails

    async def reset(self, sample: Sample) -> str:
        await self._fail("reset")
        return f"[{self._left}]" if isinstance(sample.prompt.text, str) else ""

    async def step(self, text: str) -> Step:
        await self._fail("step")
        self._left -= 1
        done, metrics = self._left == 0, {"letters": float(len(text))}
        return Step(observation=f"[{self._left}]", reward=len(text), done=done, metrics=metrics)

    async def close(self) -> None:
        type(self).closed += 1

    async def _fail(self, where: str) -> None:
        if self._fails == f"hang in {where}":
            await asyncio.Event().wait()
        if self._fails == f"crash in {where}":
            raise KeyError(where)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "countdown", sys.modules[__name__])


def generator(**settings: Any) -> EnvironmentGenerator:
    return EnvironmentGenerator(EnvironmentConfig(**{"environment": "countdown:Countdown", **settings}))


class TestText(GeneratorConformance):
    def generator(self) -> Generator:
        return generator()


class TestChat(GeneratorConformance):
    def generator(self) -> Generator:
        return generator()

    def prompt(self) -> Prompt:
        return Prompt(prompt_id="p", text=({"role": "user", "content": "play"},))


def play(prompt: str = "go", *, max_tokens: int = 100, **settings: Any) -> tuple[Sample, str]:
    """The sample, and its response as text."""
    engine = TokenEngine(lambda prompt, seed: "ab" if prompt.endswith("[2]") else "abc")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=max_tokens), CountingReward())
    pending = sample_of(
        prompt=Prompt(prompt_id="p", text=prompt),
        prompt_ids=tuple(engine.tokenizer.encode(prompt, add_special_tokens=False)),
    )
    found = asyncio.run(generator(**settings).generate(ctx, pending))
    return found, engine.tokenizer.decode(found.response_ids, skip_special_tokens=False)


def test_observations_are_masked_and_turns_have_rewards() -> None:
    closed = Countdown.closed
    found, text = play()
    assert text == "[2]ab<|im_end|>[1]abc<|im_end|>"
    assert found.loss_mask == (0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1)
    assert (found.status, found.text) == (GenerationStatus.COMPLETED, "abc")
    assert found.metrics == {"turns": 2, "letters": 5}
    assert Countdown.closed == closed + 1


@pytest.mark.parametrize("credit", ["turn", "episode"])
def test_the_reward_of_a_turn_reaches_its_last_token(credit: str) -> None:
    found, _ = play()
    reward = EnvironmentReward(EnvironmentRewardConfig.model_validate({"credit": credit}))
    (score,) = checked_scores(reward, [found])  # what core demands of per-token rewards holds
    assert isinstance(score, Score)
    assert score.value == 5
    scored = Sample(**{**vars(found), "score": score, "reward_status": RewardStatus.SCORED})
    batch = to_batch([Group(group_id=0, prompt=found.prompt, samples=(scored,))], minibatches=1, version=0)
    nonzero = {place: value for place, value in enumerate(batch.per_token["rewards"].tolist()) if value}
    assert nonzero == ({5: 2.0, 12: 3.0} if credit == "turn" else {12: 5.0})


def test_a_reward_for_another_generator_fails() -> None:
    prompt = Prompt(prompt_id="p", text="")
    plain = Sample(prompt=prompt, prompt_ids=(1,), group_id=0, index=0, rollout_id="0.0")
    with pytest.raises(ValueError, match="expected --generator environment"):
        EnvironmentReward(EnvironmentRewardConfig()).score([plain])


@pytest.mark.parametrize(
    ("fails", "failure"),
    [
        ("crash in reset", "environment_crashed"),
        ("crash in step", "environment_crashed"),
        ("hang in reset", "environment_reset_timed_out"),
        ("hang in step", "environment_step_timed_out"),
    ],
)
def test_an_environment_that_fails_is_a_failed_sample(fails: str, failure: str) -> None:
    closed = Countdown.closed
    found, _ = play(options={"fails": fails}, reset_timeout=0.2, step_timeout=0.2)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, failure)
    assert Countdown.closed == closed + 1


def test_limits_truncate() -> None:
    assert play(max_turns=1)[0].status is GenerationStatus.TRUNCATED
    cut, text = play(max_tokens=8)
    assert (cut.status, text) == (GenerationStatus.TRUNCATED, "[2]ab<|im_end|>")
    short, text = play(max_turn_tokens=1)
    assert (short.status, text) == (GenerationStatus.COMPLETED, "[2]a[1]a")
    for full in (2, 3):  # nor where the observation fits, and no answer to it
        assert play(max_tokens=full)[0].failure == "no_room"


def test_a_first_observation_joins_the_prompt_of_a_chat() -> None:
    engine = TokenEngine(lambda prompt, seed: "hm")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=100), CountingReward())
    chat = ({"role": "user", "content": "play"},)

    class Greeting(Countdown):
        async def reset(self, sample: Sample) -> str:
            return "hello"

    sys.modules["countdown"].__dict__["Greeting"] = Greeting
    ids = engine.tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=True)
    pending = Sample(
        prompt=Prompt(prompt_id="p", text=chat), prompt_ids=tuple(ids), group_id=0, index=0, rollout_id="0.0"
    )
    found = asyncio.run(generator(environment="countdown:Greeting").generate(ctx, pending))
    said = engine.tokenizer.decode(found.prompt_ids, skip_special_tokens=False)
    assert said.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    assert found.loss_mask[0] == 1
    assert len(found.prompt_ids) - len(ids) + len(found.response_ids) <= 100


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be loaded, AttributeError"):
        generator(environment="countdown:Nobody")
    with pytest.raises(ConfigError, match=r"has no reset\(\)"):
        generator(environment="countdown:Step")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install .textarena>=0\.7"):
        generator(kind="textarena", environment="Wordle-v0")


def test_episodes_are_seeds() -> None:
    found = Episodes(EpisodesConfig(text="go", size=10, held_out=3, first_seed=5)).prompts()
    assert [prompt.metadata["seed"] for prompt in found.train] == [5, 6, 7, 8, 9, 10, 11]
    assert [prompt.metadata["seed"] for prompt in found.held_out["episodes"]] == [12, 13, 14]
