"""SGLang with each matrix divided between two ranks, over gloo: what one rank computes, after updates too."""

import asyncio
import ipaddress
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from rlcore import EngineClient, PackedFloats, Part, Publisher, Request, Sampling, TokenIds
from rlcore.engines.publish import verify_by_reload
from rlcore_sglang.client import SglangClient
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.publish import TensorPublisher
from rlcore_testing.engine_server import REQUEST_LIMIT_S, TOKEN, launch_of, serving
from rlcore_testing.publication import publish
from rlcore_toolkit import DiskPublisher, call_in_thread
from rlcore_toolkit.publishers.broadcast import BroadcastPublisher

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

PYTHON = "RLCORE_SGLANG_PYTHON"
RANKS = 2
TEXT = tuple(range(3, 99))
GREEDY = Sampling(max_tokens=24, temperature=0.0)
TOLERANCE = 1e-4
BUCKET_BYTES = 100_000
"""So that a publication is of several buckets."""


@dataclass(frozen=True)
class Seen:
    """Log-probs of `TEXT`, and the greedy response to it."""

    log_probs: PackedFloats
    response: TokenIds


@contextmanager
def server(model: Path, folder: Path, fields: Mapping[str, Any]) -> Iterator[str]:
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    config = SglangConfig(python=os.environ[PYTHON])
    part = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)
    with serving(launch_of(model, folder, fields=fields), part) as url:
        yield url


def client_of(url: str) -> EngineClient:
    return SglangClient(url, TOKEN, timeout_s=REQUEST_LIMIT_S, control_timeout_s=REQUEST_LIMIT_S)


async def seen(client: EngineClient) -> Seen:
    (answer,) = await client.generate(Request(input_ids=TEXT, sampling=GREEDY))
    return Seen(await client.score(TEXT), answer.token_ids)


@pytest.fixture(scope="module")
def of_one_rank(tiny_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, ...]:
    """What a server of one rank makes of each model."""

    async def ask(url: str) -> tuple[Seen, ...]:
        async with client_of(url) as client:
            first = await seen(client)
            await client.update_from_disk(str(tiny_models[1]), 1, flush=False)
            await client.flush_cache()
            return first, await seen(client)

    with server(tiny_models[0], tmp_path_factory.mktemp("one"), {}) as url:
        return asyncio.run(ask(url))


@pytest.fixture(scope="module")
def two_ranks(
    of_one_rank: tuple[Seen, ...], tiny_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of two ranks, started when the other one is gone."""
    with server(tiny_models[0], tmp_path_factory.mktemp("two"), {"tp-size": str(RANKS)}) as url:
        yield url


def same(found: Seen, wanted: Seen) -> None:
    assert found.log_probs == pytest.approx(wanted.log_probs, abs=TOLERANCE)
    assert found.response == wanted.response


async def test_two_ranks_compute_what_one_does(two_ranks: str, of_one_rank: tuple[Seen, ...]) -> None:
    async with client_of(two_ranks) as client:
        assert (await client.capabilities()).tensor_ranks == RANKS
        same(await seen(client), of_one_rank[0])


@pytest.mark.parametrize("way", ["tensor", "handles", "broadcast", "disk"])
async def test_new_weights_reach_both_ranks(
    two_ranks: str, of_one_rank: tuple[Seen, ...], tiny_models: tuple[Path, Path], tmp_path: Path, way: str
) -> None:
    old, new = (list(load_file(model / "model.safetensors").items()) for model in tiny_models)
    publisher = publisher_of(way, tmp_path, tiny_models[0])
    async with client_of(two_ranks) as client:
        location = await publish(publisher, [client], new, 7)
        same(await seen(client), of_one_rank[1])
        # of each rank the checksums are those of its share of the files
        await verify_by_reload(publisher, client, location, tiny_models[0])
        assert any(name.endswith("@1") for name in await client.checksums())
        await publish(publisher, [client], old, 8)
        same(await seen(client), of_one_rank[0])


def publisher_of(way: str, root: Path, model: Path) -> Publisher:
    broadcast = BroadcastPublisher(
        root=root, dtype="fp32", bucket_bytes=BUCKET_BYTES, backend="gloo", limit_s=REQUEST_LIMIT_S
    )
    broadcast.connect(lambda call, *rest: call_in_thread(lambda: getattr(broadcast.sender, call)(*rest)))
    tensor = TensorPublisher(root=root, dtype="fp32", bucket_bytes=BUCKET_BYTES)
    ways: dict[str, Publisher] = {
        "broadcast": broadcast,
        "disk": DiskPublisher(root=root, dtype="fp32", model_path=model),
        "handles": tensor.feeding(RANKS).beside([0] * RANKS),
        "tensor": tensor,
    }
    return ways[way]


def test_ranks_listen_on_loopback(two_ranks: str) -> None:
    """All but the store by which they find each other, which torch opens on every interface for SGLang."""
    listening = [
        one.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    abroad = [address for address in listening if not ipaddress.ip_address(address).is_loopback]
    assert len(listening) > RANKS
    assert len(abroad) <= 1
