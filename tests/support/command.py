"""The real command in a real process, with a time limit, and nothing left behind."""

import atexit
import contextlib
import functools
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil

from rlcore import Kind
from rlcore.plugins.installed import GROUP
from rlcore.runtime.connect import PRELOAD
from rlcore_cli.main import run
from rlcore_machine import Forked, ForkServer, reaper
from rlcore_testing import ranks

LIMIT_S = 240.0
SMALL = ("--prompts-per-step", "8", "--group-size", "4", "--eval-prompts", "16")


Start = Callable[..., "Command"]
Run = Callable[..., "Command"]


VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


IMPORTED = (
    "rlcore_cli.main",
    "rlcore.runtime.train",
    "rlcore_sampling.producers",
    "rlcore_toolkit.publishers.delta_publisher",
    "transformers.models.auto.tokenization_auto",
)
"""Of a command, what takes a tenth of a second or more, beside what each kind of process asks for."""


def preloaded() -> list[str]:
    """What commands and `local` servers import takes longer than most tests."""
    plugins = [entry.module for entry in entry_points(group=GROUP)]
    return [*IMPORTED, *PRELOAD, *plugins, *ranks.preload(Kind.TRAINER, Kind.ENGINE)]


@functools.cache
def fork_server() -> ForkServer:
    """Of all commands, and of `local` servers."""
    if ranks._servers:  # this process was forked with these imports itself
        return ranks._servers[0]
    server = ForkServer(preloaded(), VARIABLES)
    atexit.register(server.close)
    return server


def run_with(packages: Sequence[str], arguments: Sequence[str]) -> int:
    """`rlcore ARGUMENTS` where the packages in these folders are installed too."""
    tempfile.tempdir = None  # the imports have settled on one: this process has variables of its own
    for folder in packages:
        site.addsitedir(folder)
    return run(arguments)


class Command:
    """One `rlcore …` in its own session.

    It is forked, and so are the processes of its run, `ray` aside; unless it is `fresh`: then it is what a
    user starts, whose libraries read the variables of `env` as they are imported. `packages`: folders of
    packages that a forked one finds installed.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        env: dict[str, str] | None = None,
        fresh: bool = False,
        ray: bool = False,
        packages: Sequence[str] = (),
    ) -> None:
        self.out, self.err = cwd / "stdout.txt", cwd / "stderr.txt"
        known = {**os.environ, **VARIABLES, **(env or {})}
        self.process: Forked | subprocess.Popen[bytes]
        if not fresh:
            for file in (self.out, self.err):
                file.write_text("")  # what an earlier command said is gone, and a test may read it at once
            chooses = any(argument.startswith("--cluster") for argument in arguments)
            if arguments[0] in ("train", "eval") and not chooses:
                arguments = (*arguments, "--cluster", "ray" if ray else "processes")
            self.process = fork_server().fork(
                "command:run_with", [packages, arguments], cwd=cwd, env=known, out=self.out, err=self.err
            )
            return
        program = Path(sys.executable).with_name("rlcore")
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [str(program), *arguments],
                cwd=cwd,
                env=known,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, limit: float = LIMIT_S) -> int:
        return self.process.wait(limit)

    def stop(self) -> None:
        """End what is left of it. Its reaper ends by itself, and removes the folders of the run."""
        try:
            tree = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            tree = []
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                if reaper.__file__ not in process.cmdline():
                    process.kill()

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()

    def descendants(self) -> list[psutil.Process]:
        """The living processes that it started, whatever their session."""
        return psutil.Process(self.process.pid).children(recursive=True)


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The finished lines of metrics.jsonl; the command may be writing another."""
    finished, _, _ = (run_dir / "metrics.jsonl").read_text().rpartition("\n")
    return [json.loads(line) for line in finished.splitlines()]


def untimed(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured."""
    clocks = ("time/", "perf/", "rollout/tokens_per_s")
    return [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in rows(run_dir)]


def wait_for(what: Callable[[], bool], limit: float = LIMIT_S, alive: Command | None = None) -> None:
    """Poll until `what()`; fails at the limit, or at once where the command has ended."""
    deadline = time.monotonic() + limit
    while not what():
        assert time.monotonic() < deadline, "not within the time limit"
        if alive is not None:
            assert alive.process.poll() is None, alive.stderr[-4000:]
        time.sleep(0.1)


def line_of(process: psutil.Process) -> str:
    """Its name, and the command that it was started by: that of a forked one is its fork server's."""
    words = process.cmdline()
    is_forked = any("fork_server" in word for word in words)
    return " ".join([process.name(), *([] if is_forked else words)])


def gone(processes: list[psutil.Process], limit: float = 30.0) -> None:
    """Every one of `processes` ends within `limit` seconds."""
    _, living = psutil.wait_procs(processes, timeout=limit)
    assert not living, [" ".join(process.cmdline()) for process in living if process.is_running()]
