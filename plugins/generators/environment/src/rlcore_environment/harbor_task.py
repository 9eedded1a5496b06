"""A task of Harbor, read from its folder: `task.toml`, `instruction.md`, `environment/`, `tests/`."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlcore import DataError

CONFIG, INSTRUCTION, TESTS = "task.toml", "instruction.md", "tests"
TEST_SCRIPT = "test.sh"
DEFAULT_TEST_SECONDS = 600.0
"""Harbor's own."""
SYSTEM_FOLDERS = frozenset(
    {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"}
)
IGNORED = frozenset(
    {"FROM", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "SHELL"}
)
"""Instructions of a Dockerfile that change nothing for commands in the sandbox."""


@dataclass(frozen=True)
class Copy:
    """Files of `environment/` that an image would hold. `into`: a file keeps its name, in the target."""

    sources: tuple[Path, ...]
    target: PurePosixPath
    into: bool


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """What a trial needs. `image`: its unpacked file system, or None for the machine's own."""

    folder: Path
    image: Path | None
    workdir: PurePosixPath
    environment: Mapping[str, str]
    copies: Sequence[Copy]
    test_seconds: float
    test_environment: Mapping[str, str]

    @property
    def writable(self) -> list[str]:
        """The top folders that commands and tests may change."""
        paths = [self.workdir, *(copy.target for copy in self.copies)]
        homes = {f"/{name}" for name in ("root", "home") if self.image and (self.image / name).is_dir()}
        return sorted({"/tests", "/logs", "/tmp", *homes, *(f"/{path.parts[1]}" for path in paths)})


def read_task(folder: Path, image: Path | None = None, *, ignore_run: bool = False) -> HarborTask:
    """The task in `folder`. Raises `DataError` where it is none, or needs more than a sandbox.

    `ignore_run`: whatever its Dockerfile runs is there already.
    """
    try:
        config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: its {CONFIG} cannot be read: {error}.") from error
    if not (folder / TESTS / TEST_SCRIPT).is_file():
        raise DataError(f"{folder}: found no {TESTS}/{TEST_SCRIPT}, which would give the reward.")
    if lacking := _beyond(folder, config):
        raise DataError(f"{folder}: the task needs {lacking}, which a sandbox does not have.")
    environment = config.get("environment", {})
    built = _Dockerfile(folder, image, {*IGNORED, *({"RUN"} if ignore_run else ())})
    workdir = PurePosixPath(environment.get("workdir") or built.workdir)
    verifier = config.get("verifier", {})
    task = HarborTask(
        folder=folder,
        image=image,
        workdir=workdir,
        environment={**built.environment, **_texts(environment)},
        copies=built.copies,
        test_seconds=float(verifier.get("timeout_sec", DEFAULT_TEST_SECONDS)),
        test_environment=_texts(verifier),
    )
    for path in (workdir, *(copy.target for copy in built.copies)):
        parts = path.parts
        if not path.is_absolute() or len(parts) < 2 or parts[1] in SYSTEM_FOLDERS or ".." in parts:
            raise DataError(
                f"{folder}: the task writes to {path}, expected a folder that is not the system's."
            )
    return task


def _texts(table: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in table.get("env", {}).items()}


def _beyond(folder: Path, config: Mapping[str, Any]) -> str:
    """What of a container or a cluster the task asks for; empty: nothing."""
    environment, verifier = config.get("environment", {}), config.get("verifier", {})
    variables = [*environment.get("env", {}).values(), *verifier.get("env", {}).values()]
    asked = {
        "several steps": config.get("steps"),
        "a container of its own for the tests": verifier.get("environment")
        or verifier.get("environment_mode") == "separate",
        "another system than Linux": str(environment.get("os", "linux")).lower() != "linux",
        "GPUs or TPUs": environment.get("gpus") or environment.get("tpu"),
        "MCP servers": environment.get("mcp_servers"),
        "a health check": environment.get("healthcheck"),
        "several containers": any((folder / "environment").glob("docker-compose.y*ml")),
        "variables of the machine": any("${" in str(value) for value in variables),
    }
    return next((what for what, is_asked in asked.items() if is_asked), "")


class _Dockerfile:
    """What a task's Dockerfile says, as far as it can be had without building an image."""

    def __init__(self, folder: Path, image: Path | None, ignored: Set[str]) -> None:
        self.workdir = PurePosixPath("/app")
        self.environment: dict[str, str] = {}
        self.copies: list[Copy] = []
        self._context = folder / "environment"
        file = self._context / "Dockerfile"
        if not file.is_file():
            if image is None and self._context.is_dir():  # Harbor brings loose files to the working directory
                self.copies = [Copy((self._context,), self.workdir, into=True)]
            return
        for word, rest in _instructions(file.read_text(encoding="utf-8")):
            if word == "WORKDIR":
                self.workdir /= rest
            elif word == "ENV":
                self.environment.update(_variables(rest))
            elif image is None and word in ("COPY", "ADD"):
                self.copies.append(self._copy(f"{file}: {word} {rest}", rest))
            elif image is None and word not in ignored:
                raise DataError(
                    f"{file}: found {word} {rest[:60]}, which builds an image: give the unpacked images "
                    "of such tasks with --source.images, or add --source.ignore-run where this machine has "
                    "what it installs."
                )

    def _copy(self, where: str, rest: str) -> Copy:
        names = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
        names = [name for name in names if not name.startswith(("--chown=", "--chmod="))]
        if any(name.startswith("--") or "://" in name for name in names) or len(names) < 2:
            raise DataError(f"{where}: expected files of the folder environment.")
        *patterns, target = names
        context = self._context.resolve()
        sources = [path for pattern in patterns for path in _matching(context, pattern)]
        if not sources or not all(path.resolve().is_relative_to(context) for path in sources):
            raise DataError(f"{where}: expected files of the folder environment.")
        into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        return Copy(tuple(sources), self.workdir / target, into)


def _matching(context: Path, pattern: str) -> list[Path]:
    inner = pattern.removeprefix("./").strip("/")
    return [context] if inner in ("", ".") else sorted(context.glob(inner))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """(instruction, rest) of each, in order."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\s*\n", " ", lines).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def _variables(rest: str) -> dict[str, str]:
    """`A=1 B=2`, or the older `A 1`."""
    parts = shlex.split(rest)
    if all("=" in part for part in parts):
        return dict(part.split("=", 1) for part in parts)
    name, _, value = rest.partition(" ")
    return {name: value.strip()}
