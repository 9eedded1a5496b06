"""A server that somebody else started, as a run takes it: checked, weighted by disk, left alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rlcore import TOKEN_VARIABLE, ConfigError, Request, Sampling, Span
from rlcore.api.factory import load
from rlcore.engines.external import ExternalLauncher, Wanted, check_all
from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_machine.network import free_port
from rlcore_testing.engine_reference import start_over
from rlcore_toolkit import DiskPublisher

CONTEXT = 1024
WANTED = Wanted(model_type="qwen3", dtype="fp32", context_length=CONTEXT)
LIMIT_S = 60.0


async def check(served: Any, wanted: Wanted = WANTED, *, url: str = "") -> None:
    client = load(served.engine.client, served.engine.name)
    await asyncio.to_thread(check_all, [url or served.url], wanted, client, limit_s=LIMIT_S)


async def test_what_it_serves_is_checked(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, served.token)
    await check(served)
    for wanted, said in (
        (replace(WANTED, model_type="llama"), "its model type is qwen3, and the run needs llama"),
        (replace(WANTED, dtype="bf16"), "its dtype is fp32, and the run needs bf16"),
        (replace(WANTED, context_length=9999), f"its context length is {CONTEXT}, and the run needs 9999"),
    ):
        with pytest.raises(ConfigError, match=f"--engine-url {served.url}: {said}"):
            await check(served, wanted)
    with pytest.raises(ConfigError, match=r"--engine-url .* cannot be reached"):
        await check(served, url=f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv(TOKEN_VARIABLE, "another")
    with pytest.raises(ConfigError, match=r"--engine-url .* RLCORE_ENGINE_TOKEN"):
        await check(served)


async def test_it_gets_weights_by_disk_and_outlives_the_run(
    served: Any, tiny_models: tuple[Path, Path], tmp_path: Path
) -> None:
    client = served.client(control_timeout_s=LIMIT_S, timeout_s=LIMIT_S)
    publisher = DiskPublisher(root=tmp_path, dtype="fp32", model_path=tiny_models[0])
    launcher = ExternalLauncher(client, limit_s=LIMIT_S)
    health, spares = Health(every_s=0.2, limit_s=LIMIT_S), Spares(limit=0)
    slot = SupervisedEngine("Engine 0", launcher, publisher, health=health, spares=spares)
    await slot.lifecycle.start()
    tensors = load_file(tiny_models[1] / "model.safetensors")
    await slot.load(publisher.write(tensors.items(), 3))
    (engine,) = Fleet([slot]).clients
    (answer,) = await engine.generate(Request(input_ids=(5, 6, 7), sampling=Sampling(max_tokens=4)))
    assert answer.spans == (Span(start=0, version=3),)
    await slot.lifecycle.stop()
    async with served.client(control_timeout_s=LIMIT_S) as beside:
        assert await beside.weight_version() == 3
        await start_over(beside, tiny_models[0])
