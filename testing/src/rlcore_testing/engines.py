"""The conformance suite of engines: a real server of a tiny model, asked as a run asks it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.factory import load
from rlcore.engines.client import EngineClient
from rlcore.engines.publish import Publisher
from rlcore_machine.shared_memory import shared_dir
from rlcore_testing.engine_control import ControlConformance
from rlcore_testing.engine_generation import GenerationConformance
from rlcore_testing.engine_reference import (
    CONTEXT,
    VOCAB,
    References,
    load_references,
    start_over,
    write_models,
)
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_testing.engine_weights import WeightsConformance
from rlcore_toolkit import call_in_thread
from rlcore_toolkit.publishers.broadcast import BroadcastPublisher

BUCKET_BYTES = 100_000
"""So few that the weights take several buckets."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server, and where its weights lie."""

    url: str
    token: str
    weights_dir: Path


class EngineConformance(GenerationConformance, ControlConformance, WeightsConformance):
    """Subclass it, say which engine, and by which `ways` it takes weights; each property is a test.

    One server serves the whole class. Each test starts with it idle, with the first of two models, and leaves
    it so. What the engine says that it cannot do is not asked.
    """

    fields: dict[str, str] = {}  # noqa: RUF012 - a subclass sets its own
    """Fields of the engine's own table: what its server is started with."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """What publishes does so in each way."""
        if "publisher" in metafunc.fixturenames:
            metafunc.parametrize("publisher", self.ways, indirect=True)

    @pytest.fixture(scope="class")
    @classmethod
    def tiny_models(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
        """Two models that differ in their weights only."""
        return write_models(tmp_path_factory.mktemp("models"))

    @pytest.fixture(scope="class")
    @classmethod
    def references(cls, tiny_models: tuple[Path, Path]) -> References:
        """The same in transformers."""
        return load_references(tiny_models)

    @pytest.fixture(scope="class")
    @classmethod
    def served(
        cls, tiny_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Served]:
        """The server of the class."""
        weights_dir = shared_dir("contract", 4_000_000)
        launch = launch_of(
            tiny_models[0],
            weights_dir,
            context_length=CONTEXT,
            fields=cls.fields,
        )
        launch = replace(launch, log_path=str(tmp_path_factory.mktemp("logs") / "engine.log"))
        try:
            with serving(launch, cls().engine()) as url:
                yield Served(url=url, token=TOKEN, weights_dir=weights_dir)
        finally:
            shutil.rmtree(weights_dir, ignore_errors=True)

    @pytest.fixture
    async def client(self, served: Served) -> AsyncIterator[EngineClient]:
        """What asks it, in the test's own event loop."""
        options: dict[str, Any] = {"control_timeout_s": 60.0, "timeout_s": 120.0}
        made: EngineClient = load(self.engine().build().client, self.engine().name)(
            served.url, served.token, vocab_size=VOCAB, concurrency=64, **options
        )
        async with made as client:
            yield client

    @pytest.fixture
    async def publisher(
        self,
        request: pytest.FixtureRequest,
        served: Served,
        client: EngineClient,
        tiny_models: tuple[Path, Path],
    ) -> AsyncIterator[Publisher]:
        """One way for new weights; afterwards the first model is back."""
        part, root = self.engine(), served.weights_dir
        config = part.config.model_copy(update={"publish": request.param})
        shutil.rmtree(root)
        root.mkdir()
        made: Publisher = (
            replace(part, config=config)
            .build()
            .publisher(weights_dir=str(root), model_path=str(tiny_models[0]), dtype="fp32")
        )
        if hasattr(made, "bucket_bytes"):
            small: Any = made
            made = replace(small, bucket_bytes=BUCKET_BYTES)
        if isinstance(made, BroadcastPublisher):
            sender = made.sender
            made.connect(lambda call, *rest: call_in_thread(lambda: getattr(sender, call)(*rest)))
        yield made
        await start_over(client, tiny_models[0])
