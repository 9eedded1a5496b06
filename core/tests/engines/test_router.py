"""sglang-router in front of two real `local` servers."""

import asyncio
import sys
from pathlib import Path

import pytest

from rlcore import Completion, EngineClient, EngineError, MissingEngineError, Request, Sampling
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.router import RoutedEngine
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_local.testing import LOCAL
from rlcore_machine.tasks import together
from rlcore_qwen.tiny import tiny
from rlcore_testing.engine_server import TOKEN, HereLauncher
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher
from rlcore_toolkit.sglang_router import SglangRouter

GROUPS, TURNS = 12, 2
LIMIT_S = 280.0


def test_a_missing_router_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingEngineError, match=r"pip install sglang-router\.$"):
        SglangRouter.check()


async def _served(launcher: HereLauncher) -> int:
    """Samples that the server has finished."""
    async with EngineClient(launcher.url, TOKEN) as beside:
        info = await beside.server_info()
    finished: int = info["requests"]["finished"]
    return finished


async def _ask(engines: list[RoutedEngine], group: int) -> list[list[Completion]]:
    """The turns of one group, one after another."""
    return [
        await engines[group % 2].generate(
            Request(
                input_ids=(4, 5, 6),
                sampling=Sampling(max_tokens=4),
                seed=group,
                rid=f"{group}.0-{turn}",
                session="1/99",
            )
        )
        for turn in range(TURNS)
    ]


@pytest.mark.full
@pytest.mark.usefixtures("forked_servers")
async def test_groups_stay_together_and_a_lost_engine_is_replaced(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model")
    router = SglangRouter("consistent_hashing", token=TOKEN, log_path=tmp_path / "router.log")
    spares = Spares(limit=1)
    launchers, slots = [], []
    for name in ("one", "two"):
        launcher = HereLauncher(LOCAL, model, tmp_path / name)
        publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32")
        health = Health(every_s=600.0, limit_s=60.0)
        slot = SupervisedEngine(name, launcher, publisher, health=health, spares=spares, registry=router)
        launchers.append(launcher)
        slots.append(slot)
    async with asyncio.timeout(LIMIT_S):
        try:
            await router.start()
            await asyncio.gather(*(slot.lifecycle.start() for slot in slots))
            can = await slots[0].requests.with_client(EngineClient.capabilities)
            async with EngineClient(router.url, TOKEN, capabilities=can, headers=router.headers) as client:
                engines = [RoutedEngine(slot, slots, client) for slot in slots]
                await _check(engines, slots, launchers, spares)
            with pytest.raises(EngineError, match="router server ended"):
                await _killed(router)
        finally:
            await asyncio.gather(*(slot.lifecycle.stop() for slot in slots))
            await router.stop()


async def _check(
    engines: list[RoutedEngine], slots: list[SupervisedEngine], launchers: list[HereLauncher], spares: Spares
) -> None:
    before = [await _served(launcher) for launcher in launchers]
    answers = await together(_ask(engines, group) for group in range(GROUPS))
    counts = [await _served(launcher) - base for launcher, base in zip(launchers, before, strict=True)]
    assert sum(counts) == GROUPS * TURNS
    assert all(count and count % TURNS == 0 for count in counts)  # both work, and no group is divided

    asked = [asyncio.create_task(_ask(engines, group)) for group in range(GROUPS)]
    launchers[0].server().kill()
    again = await asyncio.gather(*asked)
    assert [[one.token_ids for (one,) in turns] for turns in again] == [
        [one.token_ids for (one,) in turns] for turns in answers
    ]
    await slots[0].lifecycle.serving()
    assert (launchers[0].starts, launchers[1].starts, spares.used) == (2, 1, 1)


async def _killed(router: SglangRouter) -> None:
    router._process.check()
    router._process._guard.kill()  # type: ignore[union-attr]  # it has been started
    await router.watch()
