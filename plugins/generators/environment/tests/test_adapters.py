"""Environments of other packages, each where its package is installed."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rlcore import ConfigError, EngineContext, GenerationStatus, Json, Prompt, Sample, Sampling
from rlcore_environment.adapters.gymnasium import GymnasiumEnvironment
from rlcore_environment.adapters.verifiers import VerifiersEnvironment
from rlcore_environment.config import EnvironmentConfig, VerifiersRowsConfig
from rlcore_environment.generator import EnvironmentGenerator
from rlcore_environment.protocol import Step
from rlcore_environment.source import VerifiersRows
from rlcore_testing.sources import SourceConformance
from rlcore_testing.token_engine import CountingReward, TokenEngine


def sample(text: Any = "play", label: Json = None, **metadata: Json) -> Sample:
    prompt = Prompt(prompt_id="p", text=text, label=label, metadata=metadata)
    return Sample(prompt=prompt, prompt_ids=(1, 2), group_id=0, index=0, rollout_id="0.0", seed=3)


async def test_frozen_lake() -> None:
    pytest.importorskip("gymnasium")
    made = GymnasiumEnvironment("FrozenLake-v1", {"is_slippery": False})
    assert await made.reset(sample(seed=1)) == "0"
    steps = [await made.step(said) for said in ("north", "go 9", "move 2", "2", "1", "1", "1", "2")]
    await made.close()
    told = "No action: expected a number from 0 to 3."
    assert [step.observation for step in steps[:3]] == [told, told, "1"]
    assert steps[0].metrics == {"invalid_actions": 1}
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 0, 0, 1]
    assert [step.done for step in steps] == [*[False] * 7, True]


def test_an_episode_of_gymnasium_is_a_sample() -> None:
    pytest.importorskip("gymnasium")
    engine = TokenEngine(lambda prompt, seed: "2" if prompt.endswith("0.") else "1")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=60), CountingReward())
    config = EnvironmentConfig(
        kind="gymnasium",
        environment="FrozenLake-v1",
        options={"is_slippery": False},
        observation="{observation}.",
    )
    found = asyncio.run(EnvironmentGenerator(config).generate(ctx, sample()))
    said = engine.tokenizer.decode(found.response_ids, skip_special_tokens=False)
    assert said == "0.2<|im_end|>1.1<|im_end|>", "the hole at 5 ends it"
    assert found.status is GenerationStatus.COMPLETED


@pytest.mark.parametrize(("name", "said"), [("Nothing-v0", "cannot make it"), ("Blackjack-v1", None)])
def test_what_gymnasium_cannot_make_is_refused(name: str, said: str | None) -> None:
    pytest.importorskip("gymnasium")
    if said is None:
        assert asyncio.run(GymnasiumEnvironment(name, {}).reset(sample())).startswith("(")
        return
    with pytest.raises(ConfigError, match=said):
        GymnasiumEnvironment(name, {})


async def test_a_game_of_textarena() -> None:
    pytest.importorskip("textarena")
    from rlcore_environment.adapters.textarena import TextArenaEnvironment

    made = TextArenaEnvironment("GuessTheNumber-v0", {})
    assert "number" in await made.reset(sample(seed=4))
    first = last = await made.step("[1]")
    while not last.done:
        last = await made.step("[1]")
    assert "1" in first.observation
    assert not first.done
    assert 0 <= last.reward <= 1


def test_an_environment_of_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "MultiTurnEnv"):
        pytest.skip("the environments of the 0.1 line")
    from datasets import Dataset

    class Twice(vf.MultiTurnEnv):  # type: ignore[misc, name-defined] # a package without types
        async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
            return [{"role": "user", "content": "sure?"}]

    async def right(completion: Any, answer: str, **options: Any) -> float:
        return float(completion[-1].content == answer)

    rows = Dataset.from_list([{"question": "x", "answer": "y"}])
    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)  # it takes the process's
        environment = Twice(dataset=rows, rubric=vf.Rubric(funcs=[right]), max_turns=2)

    async def play(*answers: str) -> list[Step]:
        made = VerifiersEnvironment("twice", {}, environment)
        assert await made.reset(sample("1 + 1?", "2")) == ""
        try:
            return [await made.step(answer) for answer in answers]
        finally:
            await made.close()

    first, last = asyncio.run(play("3", "2"))
    assert (first.observation, first.done) == ("sure?", False)
    assert (last.reward, last.done) == (1.0, True)
    assert last.metrics["right"] == 1
    assert asyncio.run(play("2", "3"))[-1].reward == 0
    assert len(asyncio.run(play("only one turn"))) == 1, "closing ends what is under way"


SUMS = """
import verifiers as vf

def load_environment(terms=2):
    sums = [{"name": "chain_sum", "weight": 1.0, "config": {"max_terms": terms}}]
    return vf.ReasoningGymEnv(gym=sums, num_train_examples=4, num_eval_examples=2)
"""


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that loads an environment which verifiers ships."""
    pytest.importorskip("verifiers")
    (tmp_path / "sums_of_verifiers.py").write_text(SUMS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "sums-of-verifiers"


class TestVerifiersRows(SourceConformance):
    @pytest.fixture(autouse=True)
    def _sums(self, sums: str) -> None:
        self.sums = sums

    def source(self) -> VerifiersRows:
        return VerifiersRows(VerifiersRowsConfig(environment=self.sums))


def test_an_environment_that_verifiers_ships(sums: str) -> None:
    """Its rows are the prompts, its rubric gives the reward."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    found = VerifiersRows(VerifiersRowsConfig(environment=sums, options={"terms": 3})).prompts()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert (len(found.train), len(found.held_out["eval"])) == (4, 2)
    row = found.train[1]
    assert [message["role"] for message in row.text if not isinstance(message, str)] == ["system", "user"]
    question = str(dict(row.text[-1])["content"])  # type: ignore[arg-type] # it is a chat
    sum_ = sum(int(number) for number in re.findall(r"-?\d+", question.replace("- ", "-")))
    config = EnvironmentConfig(kind="verifiers", environment=sums, options={"terms": 3})

    def reward(answer: int) -> float:
        engine = TokenEngine(lambda prompt, seed: f"<answer>{answer}</answer>")
        ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=60), CountingReward())
        pending = sample(row.text, row.label, **row.metadata)
        done = asyncio.run(EnvironmentGenerator(config).generate(ctx, pending))
        assert done.status is GenerationStatus.COMPLETED, done.failure
        [turn] = done.metadata["environment_turns"]
        return float(turn[1])

    assert reward(sum_) == 1
    assert reward(sum_ + 1) < 0.5
