"""How the server is started and asked."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_engine.plugin import OpenAiConfig
from rlcore import (
    TOKEN_VARIABLE,
    Capabilities,
    Completion,
    ConfigError,
    Engine,
    EngineClient,
    EngineLaunch,
    PauseMode,
    Publisher,
    Request,
    ServerCommand,
    Span,
)
from rlcore_toolkit import DiskPublisher, disk_room

FIELDS = {"seed_offset": int}


class OpenAiEngine(Engine[OpenAiConfig]):
    """A server with OpenAI's protocol, which loads new weights from a folder between two requests."""

    name = "openai"
    client = f"{__name__}:OpenAiClient"
    aborts = False
    takes_weights_under_way = False
    releases_memory = False
    serves_frozen = False

    def check_fields(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        """A UserError for a field that the server has not, or a value of another type."""
        for name, value in fields.items():
            if name not in FIELDS or not str(value).isdecimal():
                raise ConfigError(f"--openai.{name}: found {value!r}, expected seed_offset with a number.")

    def command(self, launch: EngineLaunch) -> ServerCommand:
        """The server of this package."""
        argv = [sys.executable, "-m", "openai_engine.server", launch.model_path, launch.host]
        argv += [str(launch.port), str(launch.fields.get("seed_offset", 0))]
        return ServerCommand(argv=tuple(argv), env={TOKEN_VARIABLE: launch.token, "OMP_NUM_THREADS": "1"})

    def publisher(
        self, *, weights_dir: str, model_path: str, dtype: str, external: bool = False
    ) -> Publisher:
        """Writes whole model directories."""
        return DiskPublisher(root=Path(weights_dir), dtype=self.dtype(dtype), model_path=Path(model_path))

    def room(self, size: int) -> int:
        """That of the versions which lie there at the same time."""
        return disk_room(size)


class BareEngine(OpenAiEngine):
    """The same, as if its server told no log-probs."""

    name = "openai_bare"
    gives_log_probs = False


class OpenAiClient(EngineClient):
    """What a synchronous run asks, in OpenAI's protocol and two paths beside it: `/version`, `/load`."""

    async def generate(self, request: Request) -> list[Completion]:
        """One request of `/v1/completions` for all samples."""
        self.check(request)
        body = {
            "prompt": list(request.input_ids),
            "n": request.n,
            "seed": request.seed,
            "max_tokens": request.sampling.max_tokens,
            "temperature": request.sampling.temperature,
            "logprobs": 0,
        }
        async with self._slots:
            answer = await self._http.post("/v1/completions", body, timeout_s=self._timeout_s)
        return [_completion(one, answer["version"], len(request.input_ids)) for one in answer["choices"]]

    async def capabilities(self) -> Capabilities:
        """Seeds of requests, and nothing else."""
        return Capabilities(
            version="1",
            weight_session=False,
            seeds=True,
            seeds_siblings=True,
            min_p=False,
            tensor_checksums=False,
        )

    async def ping(self, *, timeout_s: float) -> None:
        """Asks for the version."""
        await self._http.get("/version", timeout_s=timeout_s)

    async def reach(self, *, timeout_s: float) -> None:
        """As `ping`."""
        await self.ping(timeout_s=timeout_s)

    async def weight_version(self) -> int:
        """Of the weights that it would answer with."""
        answer = await self._http.get("/version", timeout_s=self._control_s)
        return int(answer["version"])

    async def update_from_disk(self, path: str, version: int, *, flush: bool = True) -> None:
        """Loads the folder; requests wait meanwhile."""
        body = {"path": path, "version": version}
        await self._http.post("/load", body, timeout_s=self._control_s)

    async def pause(self, mode: PauseMode) -> None:
        """Nothing is under way when a synchronous run publishes."""

    async def resume(self) -> None:
        """See `pause`."""

    async def flush_cache(self) -> None:
        """The server keeps none."""

    async def abort(self, rid: str | None = None) -> None:
        """The server ends no request: what is under way is left to end."""


def _completion(choice: Mapping[str, Any], version: int, prompt_tokens: int) -> Completion:
    return Completion(
        token_ids=tuple(choice["token_ids"]),
        log_probs=tuple(choice["logprobs"]["token_logprobs"]),
        text=choice["text"],
        finish_reason=choice["finish_reason"],
        spans=(Span(start=0, version=version),),
        prompt_tokens=prompt_tokens,
    )
