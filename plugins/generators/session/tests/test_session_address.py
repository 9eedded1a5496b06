"""The endpoint for agents on other hosts: an address of choice, and TLS by a proxy in front of it."""

import asyncio
import contextlib
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rlcore import ConfigError, GenerationStatus, Sample
from rlcore_machine import LOOPBACK, free_port, listen
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.token_engine import greeted

PROGRAM = str(Path(__file__).with_name("program_agent.py"))


async def made(*arguments: str, **settings: object) -> Sample:
    config = {"command": (sys.executable, PROGRAM, *arguments), "reward": "agent", "timeout": 120, **settings}
    return await greeted(SessionGenerator(SessionConfig.model_validate(config)))


async def test_an_agent_is_told_the_address_of_choice(tmp_path: Path) -> None:
    await made("environment", str(tmp_path / "found"), address="127.0.0.2")
    found = json.loads((tmp_path / "found").read_text())
    assert found["OPENAI_BASE_URL"].startswith("http://127.0.0.2:")
    assert "127.0.0.2" in found["NO_PROXY"].split(",")
    assert (await made("answer", address="127.0.0.2")).status is GenerationStatus.COMPLETED


@asynccontextmanager
async def tls_proxy(folder: Path, port: int) -> AsyncIterator[int]:
    """Ends TLS for `localhost`, and passes everything on to `port`."""
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *name, "-days", "2", "-nodes", *files]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")

    under_way: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, port)
        ways = [copy(reader, inner_writer), copy(inner_reader, writer)]
        tasks = {asyncio.ensure_future(way) for way in ways}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for one in (writer, inner_writer):
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.ensure_future(forward(reader, writer)))

    server = await asyncio.start_server(accept, LOOPBACK, 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.wait(under_way, timeout=10)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_a_proxy_brings_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    port = free_port()
    async with tls_proxy(tmp_path, port) as public:
        found = await made("answer", port=port, public_url=f"https://localhost:{public}/")
    assert found.status is GenerationStatus.COMPLETED, found.metadata
    assert found.score is not None
    assert found.score.value == 0.5


def test_where_nothing_can_listen_is_told_before_the_run() -> None:
    with listen(LOOPBACK) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"^--generator.address {LOOPBACK}, --generator.port {port}: nothing"
        ):
            SessionGenerator(SessionConfig(command=("python3",), port=port))
    with pytest.raises(ConfigError, match=r"^--generator.address 192\.0\.2\.1, "):
        SessionGenerator(SessionConfig(command=("python3",), address="192.0.2.1"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"address": "0.0.0.0"}, "expected --generator.public-url"),
        ({"address": "my-host"}, "does not appear to be an IPv4 or IPv6 address"),
        ({"public_url": "my-host:80"}, "should match pattern"),
    ],
)
def test_addresses_that_say_nothing_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SessionConfig.model_validate({"command": ("python3",), **settings})
