"""The producer on the real `local` server: log-probs, versions, sessions, exact repetition."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore import DataError, ProducerContext, Prompt, RewardPart, RunConfig, Sampling, StaleWeightsError
from rlcore.data.cursors import cursor_of
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.engines.client import EngineClient
from rlcore.rollout.batch import to_batch
from rlcore.rollout.evaluate import Evaluation, Evaluator
from rlcore.rollout.rewards import RewardPool
from rlcore_local.client import LocalClient
from rlcore_local.testing import LOCAL
from rlcore_qwen.tiny import tiny
from rlcore_sampling.synchronous import SynchronousRollouts
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn
from rlcore_tasks.config import DigitsConfig
from rlcore_tasks.tasks import Copy
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_text.config import TokenMatchConfig

RUN = RunConfig.of(prompts_per_step=6, group_size=4, max_response_tokens=5, seed=3)
PROMPTS = Copy(DigitsConfig()).prompts()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"), seed=0)


def test_the_encoder_knows_what_the_tokenizer_does_not(model: Path) -> None:
    encoder = PromptTokenizer.load(model, max_prompt_tokens=16)
    known, strange = Prompt(prompt_id="p", text="0 1="), Prompt(prompt_id="q", text="{0}", label="é")
    assert encoder.unknown([known]) == ""
    assert encoder.unknown([known, strange]) == "{}é"


def test_a_text_that_cannot_fit_is_not_tokenized(model: Path) -> None:
    encoder = PromptTokenizer.load(model, max_prompt_tokens=16)
    with pytest.raises(DataError, match="'p' has 2000000 characters; --max-prompt-tokens allows 16 tokens"):
        encoder.check([Prompt(prompt_id="p", text="0" * 2_000_000)])


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory, forked_servers: None) -> Iterator[str]:
    with serving(launch_of(model, tmp_path_factory.mktemp("server"), context_length=64), LOCAL) as url:
        yield url


@pytest.fixture
async def rewards() -> AsyncIterator[RewardPool]:
    part = RewardPart(name="token_match", factory="rlcore_text.rewards:TokenMatch", config=TokenMatchConfig())
    async with RewardPool([part], workers=1, timeout=60.0) as pool:
        yield pool


@pytest.fixture
async def client(server: str, model: Path) -> AsyncIterator[EngineClient]:
    async with LocalClient(server, TOKEN, timeout_s=120.0) as made:
        await made.update_from_disk(str(model), version=1)
        yield made


def producer(model: Path, client: EngineClient, rewards: RewardPool, version: int = 1) -> SynchronousRollouts:
    return SynchronousRollouts(
        ProducerContext(
            run=RUN,
            cursor=cursor_of(PROMPTS.train, RUN),
            encoder=PromptTokenizer.load(model, max_prompt_tokens=16),
            clients=[client],
            generator=SingleTurn(SingleTurnConfig()),
            rewards=rewards,
            version=version,
        )
    )


async def test_a_rollout_is_what_the_model_says(
    model: Path, client: EngineClient, rewards: RewardPool
) -> None:
    rollout = await producer(model, client, rewards).rollout(1)
    batch = to_batch(rollout.groups, minibatches=1, version=1)
    assert len(batch) == 24
    assert set(batch.per_sample["version"].tolist()) == {1}
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for group in rollout.groups:
        for sample in group.samples:
            ids = torch.tensor([sample.prompt_ids + sample.response_ids])
            with torch.inference_mode():
                rows = torch.log_softmax(reference(ids).logits[0, len(sample.prompt_ids) - 1 : -1], -1)
            expected = rows.gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(sample.log_probs), expected, atol=1e-4, rtol=0)
    assert 0 <= rollout.metrics["rollout/reward_mean"] <= 1


async def test_two_runs_are_equal_to_the_bit(model: Path, client: EngineClient, rewards: RewardPool) -> None:
    first, second = producer(model, client, rewards), producer(model, client, rewards)
    for step in (1, 2, 3):
        assert (await first.rollout(step)).groups == (await second.rollout(step)).groups


async def test_two_evaluations_are_equal_to_the_bit(
    model: Path, client: EngineClient, rewards: RewardPool
) -> None:
    sets = [
        Evaluation(
            name="copy",
            prompts=PROMPTS.held_out["copy"][:20],
            generator=SingleTurn(SingleTurnConfig()),
            scorer=rewards,
            sampling=Sampling(max_tokens=6, temperature=0.8),
            samples=3,
        )
    ]
    encoder = PromptTokenizer.load(model, max_prompt_tokens=16)
    evaluator = Evaluator(run=RUN, encoder=encoder, clients=[client], sets=sets)
    assert await evaluator.evaluate(1) == await evaluator.evaluate(1)


async def test_stale_weights(model: Path, client: EngineClient, rewards: RewardPool) -> None:
    with pytest.raises(StaleWeightsError, match="generated with weight version 1, expected 2"):
        await producer(model, client, rewards, version=2).rollout(1)
