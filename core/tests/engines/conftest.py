"""What the tests of lost engines share: a model whose responses last, and a line that can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlcore.engines.publish_file import WeightsLocation
from rlcore_machine.network import free_port
from rlcore_qwen.tiny import tiny
from rlcore_testing.tiny import without_end
from rlcore_toolkit import write_version

VERSION = 7


class Relay:
    """A TCP port in front of a server's, through which nothing comes any more once it is `black`."""

    def __init__(self) -> None:
        self.black = asyncio.Event()
        self.port = free_port()
        self._target = 0
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def lead_to(self, url: str) -> str:
        """The URL at which the server of `url` is found from now on."""
        self._target = int(url.rpartition(":")[2])
        self.black.clear()
        if self._server is None:
            self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """End it, with every connection."""
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(asyncio.create_task(self._carry_both(reader, writer)))

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await self._wait_if_black()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(back):
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._wait_if_black()
            sink.write(data)
        sink.close()

    async def _wait_if_black(self) -> None:
        if self.black.is_set():
            await asyncio.Event().wait()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without an end token, whose responses last."""
    return without_end(tiny(tmp_path / "model", seed=0))


@pytest.fixture
def location(tmp_path: Path) -> WeightsLocation:
    """Other weights than those that servers start with."""
    tensors = load_file(tiny(tmp_path / "other", seed=1) / "model.safetensors")
    return write_version(tmp_path, tensors.items(), VERSION, dtype="fp32")


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """What stands between client and server."""
    made = Relay()
    yield made
    await made.close()
