"""A run whose engine somebody else started: weighted by files, and left alone at the end."""

import asyncio
from pathlib import Path

import pytest
from command import LIMIT_S, Run, rows
from inputs import CONTEXT
from layouts import SIZES, STEPS, own_input

from rlcore.api.engine import TOKEN_VARIABLE
from rlcore.engines.client import EngineClient
from rlcore_local.testing import LOCAL
from rlcore_testing.engine_server import REQUEST_LIMIT_S, TOKEN, launch_of, serving


async def _version(url: str) -> int:
    async with EngineClient(url, TOKEN, control_timeout_s=REQUEST_LIMIT_S) as client:
        await client.ping(timeout_s=REQUEST_LIMIT_S)
        return await client.weight_version()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("forked_servers")
def test_trains_with_an_engine_of_others(run: Run, tmp_path: Path) -> None:
    flags, folder, weights = own_input(tmp_path), tmp_path / "run", tmp_path / "weights"
    weights.mkdir()
    with serving(launch_of(tmp_path / "model", tmp_path, context_length=CONTEXT), LOCAL) as url:
        where = ("--engine-url", url, "--engine-weights-dir", str(weights), "--run-dir", str(folder))
        run("train", "--algo", "grpo", *flags, *SIZES, *where, env={TOKEN_VARIABLE: TOKEN}, limit=2 * LIMIT_S)
        assert asyncio.run(_version(url)) == STEPS
    trained = rows(folder)[1:]
    assert [row["weight_version"] for row in trained] == list(range(STEPS))
    assert all(0 <= row["train/kl_engine_max"] < 1e-4 and not row["engine/replaced"] for row in trained)
    assert not list(weights.iterdir())
    assert not list((folder / "logs").glob("engine-*"))
    assert TOKEN not in "".join(path.read_text() for path in folder.glob("*.toml"))
