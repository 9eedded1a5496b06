"""Two tiny Qwen3 models that differ in their weights only, and one server of each engine kind."""

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Qwen3ForCausalLM,
)

from rlcore import Engine, EngineClient, EngineLaunch, Publisher
from rlcore.api.factory import load
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_machine.network import HeldPort
from rlcore_machine.server_process import ServerProcess
from rlcore_machine.shared_memory import shared_dir
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine
from rlcore_sglang.publish import TensorPublisher
from rlcore_testing.engine_reference import CONTEXT, VOCAB, load_references, start_over, write_models
from rlcore_testing.engine_server import TOKEN
from rlcore_toolkit import DiskPublisher, call_in_thread
from rlcore_toolkit.publishers.broadcast import BroadcastPublisher
from rlcore_toolkit.publishers.delta_publisher import DeltaPublisher
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

WAYS = {
    "local": ("disk", "shared_memory", "delta", "broadcast"),
    "sglang": ("disk", "tensor", "delta", "broadcast"),
}
PYTHON = "RLCORE_SGLANG_PYTHON"


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server, and what it was started with."""

    engine: Engine
    url: str
    token: str
    weights_dir: Path

    def client(self, **options: Any) -> EngineClient:
        """One of the engine's own class."""
        client: EngineClient = load(self.engine.client, self.engine.name)(self.url, self.token, **options)
        return client


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Hugging Face directories of two random Qwen3 (2 layers, width 64, 512 byte-level tokens, fp32)."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def references(tiny_models: tuple[Path, Path]) -> tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]:
    """The same models in transformers."""
    return load_references(tiny_models)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs on each engine, and where it publishes, in each way that the engine has for it."""
    if "served" in metafunc.fixturenames:
        kinds = [pytest.param(kind, marks=_marks(kind), id=kind) for kind in WAYS]
        metafunc.parametrize("served", kinds, indirect=True)
    if "publisher" in metafunc.fixturenames:
        ways = dict.fromkeys(way for ways in WAYS.values() for way in ways)
        metafunc.parametrize("publisher", ways, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Not a way that an engine lacks. Parametrized in pairs, a server would be started for each way."""
    items[:] = [item for item in items if _is_offered(getattr(item, "callspec", None))]


def _is_offered(call: Any) -> bool:
    params = call.params if call is not None else {}
    kind, way = params.get("served"), params.get("publisher")
    return kind not in WAYS or way is None or way in WAYS[kind]


def _marks(kind: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.sglang] if kind == "sglang" else []


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest,
    tiny_models: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    forked_servers: None,
) -> Iterator[Served]:
    """One server a module. It starts with the first model, and each test leaves it idle with that model."""
    engine, limit_s = _ENGINES[request.param]()
    fields = getattr(request.module, "SGLANG_FIELDS", {}) if engine.name == "sglang" else {}
    port = HeldPort()
    weights_dir = shared_dir("contract", 4_000_000)
    launch = EngineLaunch(
        model_path=str(tiny_models[0]),
        host="127.0.0.1",
        port=port.number,
        token=TOKEN,
        dtype="fp32",
        context_length=CONTEXT,
        seed=0,
        weights_dir=str(weights_dir),
        log_path=str(tmp_path_factory.mktemp("logs") / "engine.log"),
        fields=fields,
    )
    command = engine.command(launch)
    process = ServerProcess(
        command.argv, name=engine.name, log_path=launch.log_path, env=command.env, grace_s=15.0
    )
    url = f"http://{launch.host}:{launch.port}"
    with port, process:
        process.wait_ready(f"{url}/health", limit_s=limit_s, token=TOKEN)
        yield Served(engine=engine, url=url, token=TOKEN, weights_dir=weights_dir)
        process.check()
    shutil.rmtree(weights_dir)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[EngineClient]:
    """A client of the test's own event loop."""
    options: dict[str, Any] = {"control_timeout_s": 60.0, "timeout_s": 120.0}
    async with served.client(vocab_size=VOCAB, concurrency=64, **options) as one:
        yield one


@pytest.fixture
async def publisher(
    request: pytest.FixtureRequest, served: Served, client: EngineClient, tiny_models: tuple[Path, Path]
) -> AsyncIterator[Publisher]:
    """One way for new weights; afterwards the first model is back."""
    root = served.weights_dir
    broadcast = BroadcastPublisher(
        root=root, dtype="fp32", bucket_bytes=100_000, backend="gloo", limit_s=60.0
    )
    broadcast.connect(lambda call, *rest: call_in_thread(lambda: getattr(broadcast.sender, call)(*rest)))
    ways: dict[str, Publisher] = {
        "broadcast": broadcast,
        "disk": DiskPublisher(root=root, dtype="fp32", model_path=tiny_models[0]),
        "delta": DeltaPublisher(root=root, dtype="fp32", model_path=tiny_models[0]),
        "shared_memory": SharedMemoryPublisher(root=root, dtype="fp32"),
        "tensor": TensorPublisher(root=root, dtype="fp32", bucket_bytes=100_000),
    }
    shutil.rmtree(root)
    root.mkdir()
    yield ways[request.param]
    await start_over(client, tiny_models[0])


def _local() -> tuple[Engine, float]:
    return LocalEngine(LocalConfig(max_batch=32)), 120.0


def _sglang() -> tuple[Engine, float]:
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    return SglangEngine(SglangConfig(python=os.environ[PYTHON])), 600.0


_ENGINES: dict[str, Callable[[], tuple[Engine, float]]] = {"local": _local, "sglang": _sglang}
