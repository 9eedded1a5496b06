"""200 steps of chaos on a `local` engine in this process: each prompt is given or dropped, exactly once."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from aiohttp import web

from rlcore import GenerationContext, Group, ProducerContext, RewardStatus, RunConfig, Sample, Score, Verdict
from rlcore.data.cursors import PromptCursor, cursor_of
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.engines.client import EngineClient
from rlcore_local.process import start
from rlcore_local.server import make_app
from rlcore_local.settings import Settings
from rlcore_qwen.tiny import tiny
from rlcore_sampling.asynchronous import AsynchronousRollouts
from rlcore_sampling.synchronous import SynchronousRollouts
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn
from rlcore_tasks.config import DigitsConfig
from rlcore_tasks.tasks import Copy
from rlcore_testing.publication import publish
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

TOKEN = "secret"
PROMPTS = Copy(DigitsConfig()).prompts().train[:97]
SEED = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture
async def client(model: Path, tmp_path: Path) -> AsyncIterator[EngineClient]:
    """An engine whose compute thread and server live in this process."""
    settings = Settings(model_path=model, weights_dir=tmp_path, threads=1)
    service = await start(settings, asyncio.get_running_loop())
    runner = web.AppRunner(make_app(service, TOKEN), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with EngineClient(f"http://127.0.0.1:{runner.addresses[0][1]}", TOKEN, timeout_s=60.0) as made:
            yield made
    finally:
        await runner.cleanup()
        for _ in range(2):  # by the second, what was under way is answered: this loop is about to close
            await service.call(lambda: None)


class Chaotic:
    """A crash in 50 generations, and a tool that takes its time. `crashes`: (group, try)."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.inner = SingleTurn(SingleTurnConfig())
        self.crashes: set[tuple[int, int]] = set()

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        if self.dice.random() < 0.02:
            self.crashes.add((sample.group_id, sample.attempt))
            raise OSError("a tool failed")
        await asyncio.sleep(self.dice.random() ** 4 * 0.02)
        return await self.inner.generate(ctx, sample)


class Rewards:
    """A group in 10 gets no score. `unscored`: how often, by group."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.unscored: Counter[int] = Counter()

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        await asyncio.sleep(0)
        if self.dice.random() < 0.1:
            self.unscored[samples[0].group_id] += 1
            return [replace(sample, reward_status=RewardStatus.TIMED_OUT) for sample in samples]
        score, status = Score(value=1.0), RewardStatus.SCORED
        return [replace(sample, reward_status=status, score=score) for sample in samples]


class Drop:
    """A group in ten, and a ledger of them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.dropped: list[int] = []

    def judge(self, group: Group) -> Verdict:
        if self.dice.random() < 0.1:
            self.dropped.append(group.group_id)
            return Verdict(group=None, reason="dice")
        return Verdict(group=group)


def check(group: Group, version: int, staleness: int) -> None:
    """Every token has its mask, its log-prob and its version, and those to train on are not too old."""
    for sample in group.samples:
        assert len(sample.response_ids) == len(sample.log_probs) == len(sample.loss_mask) > 0
        live = [v for v, mask in zip(sample.token_versions, sample.loss_mask, strict=True) if mask]
        assert all(version - staleness <= sampled <= version for sampled in live)


CHAOS = {
    "one step off": {"steps": 60, "max_staleness": 1, "on_publish": "retract"},
    "resting, masked": {
        "steps": 60,
        "max_staleness": 1,
        "on_publish": "in_place",
        "partial_rollouts": True,
        "over_sample": 2.5,
        "mask_stale_tokens": True,
    },
    "far ahead, aborting": {"steps": 200, "max_staleness": 3, "on_publish": "abort"},
}


@pytest.mark.full
@pytest.mark.parametrize("options", CHAOS.values(), ids=CHAOS.keys())
async def test_nothing_is_lost_and_nothing_is_doubled(
    client: EngineClient, model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Crashes, time-outs, drops, publications amid responses; every 20 steps the run ends and is resumed."""
    dice = random.Random(SEED)
    generator, rewards, drop = Chaotic(dice), Rewards(dice), Drop(dice)
    sizes = {"prompts_per_step": 4, "group_size": 2, "max_response_tokens": 6, "max_refills": 50}
    run = RunConfig.of(seed=SEED, **sizes, **options)
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    step, state, given = 0, None, dict[int, str]()
    async with asyncio.timeout(300.0):
        while step < run.steps:
            how = AsynchronousRollouts if run.asynchrony.is_asynchronous else SynchronousRollouts
            made = how(
                ProducerContext(
                    run=run,
                    cursor=cursor_of(PROMPTS, run),
                    encoder=PromptTokenizer.load(model, max_prompt_tokens=16),
                    clients=[client],
                    generator=generator,
                    rewards=rewards,
                    filters=[drop],
                    version=step,
                )
            )
            if state is not None:
                made.load(state)
            async with aclosing(made.run(step, run.steps)) as rollouts:
                async for rollout in rollouts:
                    assert rollout.metrics["rollout/aborted"] == 0  # the run's own interruptions are none
                    for group in rollout.groups:
                        check(group, step, run.asynchrony.max_staleness)
                        assert group.group_id not in given
                        given[group.group_id] = group.prompt.prompt_id
                    step = rollout.step
                    noisy = {name: value + 1e-3 * torch.randn_like(value) for name, value in tensors.items()}
                    async with made.publication(step):
                        keep = run.asynchrony.on_publish == "in_place"
                        await publish(publisher, [client], noisy.items(), step, keep_cache=keep)
                    if step % 20 == 0:
                        async with made.suspended():
                            state = json.loads(json.dumps(made.state()))
                        break
    assert state is not None
    present = [one["group_id"] for one in [*state["buffer"]["draws"], *state["buffer"]["groups"]]]
    places = Counter([*given, *drop.dropped, *present])
    assert set(places.values()) == {1}
    crashes = Counter(group_id for group_id, _ in generator.crashes)
    for lost in set(range(state["next_group"])) - set(places):
        assert crashes[lost] >= run.data.max_attempts or rewards.unscored[lost] >= 2, (
            f"group {lost} is nowhere"
        )
    dealt = PromptCursor(PROMPTS, SEED).take(state["next_group"])
    assert {number: dealt[number][0].prompt_id for number in given} == given
    assert len(given) == run.steps * run.data.prompts_per_step
    assert drop.dropped
    assert crashes
