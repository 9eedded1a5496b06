"""The agent: a function in this process, or a program of its own; and the handle that it gets."""

import asyncio
import inspect
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil

from rlcore import ConfigError, Json, Prompt
from rlcore_toolkit import load_object

INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "NODE_PATH", "XDG_RUNTIME_DIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    }
)
"""The environment variables that a program gets, beside those of `LC_`: none that holds a token."""

LOG_TAIL = 4000
"""Characters of a failed program's output that are kept."""


class AgentError(Exception):
    """An agent that did not end well. `reason`: the sample's `failure`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, kw_only=True)
class AgentSession:
    """What an agent gets: its task, where to ask, and how to report.

    `openai_url` and `anthropic_url` are the base URLs that the SDKs of those names take; `api_key` is good
    for this session alone. `seed`: the sample's, for an agent that is to repeat. `report(reward=…, parts=…,
    answer=…)`: the agent's own reward, parts of it to log, and the text that the run's reward judges in place
    of the last answer.
    """

    prompt: Prompt
    openai_url: str
    anthropic_url: str
    api_key: str
    seed: int
    report: Callable[..., None]

    @property
    def task(self) -> dict[str, Json]:
        """The prompt as JSON: `prompt_id`, `messages`, `tools`, `metadata` and `seed`, but no label."""
        text = self.prompt.text
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else [*map(dict, text)]
        tools, metadata = [*map(dict, self.prompt.tools)], dict(self.prompt.metadata)
        task = {"prompt_id": self.prompt.prompt_id, "messages": messages, "tools": tools}
        return {**task, "metadata": metadata, "seed": self.seed}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead the SDKs here, past any proxy."""
        host = urlsplit(self.openai_url).hostname
        direct = ",".join(filter(None, [os.environ.get("NO_PROXY", os.environ.get("no_proxy")), host]))
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "NO_PROXY": direct,
            "no_proxy": direct,
        }


class Agent(Protocol):
    """Works on one task. Raises `AgentError` where it cannot."""

    async def work(self, session: AgentSession) -> None: ...


class FunctionAgent:
    """An async function of one argument, the `AgentSession`. It must not block the event loop."""

    def __init__(self, function: Callable[[AgentSession], Awaitable[object]]) -> None:
        self._function = function

    async def work(self, session: AgentSession) -> None:
        """Whatever it raises is the agent's crash; what it returns does not count."""
        try:
            await self._function(session)
        except Exception as error:
            raise AgentError("crashed", f"{type(error).__name__}: {error}") from error


class CommandAgent:
    """A program that is told where to ask by environment variables, and its task by `RLCORE_TASK_FILE`.

    It ends with its work, and every process that it started with it. Its output is kept where it fails. Of
    this process's environment it gets `INHERITED` and `keep`, so that it sees no token of the run.
    """

    def __init__(self, command: Sequence[str], keep: Sequence[str] = ()) -> None:
        self._command, self._keep = command, keep

    async def work(self, session: AgentSession) -> None:
        """Exit code 0 is a success."""
        scratch = os.environ.get("RLCORE_SCRATCH")
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rlcore-agent-", dir=scratch))
        try:
            (folder / "task.json").write_text(json.dumps(session.task))
            with (folder / "log").open("w+b") as log:
                code = await self._run(session, folder, log)
                if code:
                    log.seek(max(0, log.tell() - LOG_TAIL))
                    tail = log.read().decode(errors="replace")
                    raise AgentError("crashed", f"exit code {code}:\n{tail}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _run(self, session: AgentSession, folder: Path, log: Any) -> int:
        names = INHERITED.union(self._keep)
        inherited = {name: value for name, value in os.environ.items() if name in names or name[:3] == "LC_"}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            env={**inherited, **session.environment, "RLCORE_TASK_FILE": str(folder / "task.json")},
            start_new_session=True,
        )
        try:
            return await process.wait()
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the program: its group, and what has left that."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def find_agent(agent: str, command: Sequence[str], keep: Sequence[str] = ()) -> Agent:
    """The agent that the settings name. Raises `ConfigError` where it is not there.

    `keep`: names of environment variables for a program.
    """
    if not agent:
        if shutil.which(command[0]) is None:
            raise ConfigError(f"--generator.command: found {command[0]!r}, which is no program.")
        if missing := [name for name in keep if name not in os.environ]:
            raise ConfigError(
                f"--generator.keep-environment: found {', '.join(missing)}, expected variables that are set."
            )
        return CommandAgent(command, keep)
    function = load_object(agent, "--generator.agent")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"--generator.agent {agent}: expected an async function of one argument, the session."
        )
    return FunctionAgent(function)
