"""`Sandbox`: runs untrusted programs through a keeper (`jail.py`) that outlives them all."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rlcore import ConfigError
from rlcore_sandbox import seccomp

Files = Mapping[str, str]
"""Names of files and what is in them; main.py is the one that is run."""

_FLAGS = ("-s", "-P", "-B")
_BARE_FLAGS = ("-I", "-S", "-B")
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
_ASK = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
_JAIL = Path(__file__).with_name("jail.py")


class SandboxError(RuntimeError):
    """The sandbox itself cannot do its work; nothing is known of the program."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What a program may use.

    `seconds`: by the clock. `memory_mib`: address space of each process. `processes`: with threads, at one
    time. `files_mib`: all of its /tmp, and any file elsewhere. `output_kib`: more ends it.
    """

    seconds: float = 4.0
    memory_mib: int = 512
    processes: int = 4
    files_mib: int = 16
    output_kib: int = 256


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How a program ended. `how`: by itself, at the time limit, or at the limit of its output.

    `code`: its exit code, 256 minus the number of the signal that killed it. `stdout`, `stderr`: as far as
    they came.
    """

    how: Literal["ended", "timeout", "output"]
    code: int
    stdout: str
    stderr: str


class Sandbox:
    """One keeper with its limits. A keeper that died is started anew with the next program.

    Use it from one thread: the kernel ends the keeper with the thread that started it.

    A program has no network, sees of the machine's files only the system's and the interpreter's, and runs as
    a user without rights. `python`: the interpreter of Python programs, by default the one that this
    environment was made of; raises `ConfigError` if it is none. `isolated=False`: limits and a filter of
    system calls alone. `folders`: path inside → folder of the machine that programs may change; anybody must
    be able to write there. Their /tmp is emptied between programs, unless it is one of these. `system`: a
    folder with another file system, an unpacked image of a container, in place of the machine's; then only
    commands run.
    """

    def __init__(
        self,
        limits: SandboxLimits,
        *,
        python: str | None = None,
        isolated: bool = True,
        folders: Mapping[str, str] | None = None,
        system: str = "",
    ) -> None:
        self._isolated = isolated
        self._system = system
        python = python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self._setup: dict[str, Any] = {
            "isolated": isolated,
            "python": python,
            "folders": _shown(system) if system else [*_SYSTEM, *_prefixes(python)],
            "system": system,
            "writable": dict(folders or {}),
            "parent": os.getpid(),
            **asdict(limits),
        }
        self._keeper: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = lambda: None

    def run(self, source: str, stdin: str = "") -> ProgramEnd:
        """The Python program `source`, given `stdin`. Raises `SandboxError` if the sandbox fails."""
        with self._folder(0o777) as folder:
            return self._run({"files": {"main.py": source}, "flags": _FLAGS, "stdin": stdin, **folder})

    def run_pair(self, judge: Files, stdin: str, program: Files) -> ProgramEnd:
        """How `judge`, given `stdin`, ended beside `program`, to which two pipes join it (`jail.py`).

        The judge starts without its interpreter's packages, which is faster.
        """
        with self._folder(0o755) as judges, self._folder(0o777) as programs:
            return self._run(
                {
                    "judge": {"files": judge, "flags": _BARE_FLAGS, "stdin": stdin, **judges},
                    "program": {"files": program, "flags": _FLAGS, **programs},
                }
            )

    def run_command(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str] | None = None,
        seconds: float | None = None,
        output_kib: int | None = None,
    ) -> ProgramEnd:
        """How a command ended that was run in `folder`. Raises `SandboxError` without isolation.

        It has a few variables, PATH and HOME among them, and those of `environment`. `seconds`, `output_kib`:
        limits of its own.
        """
        if not self._isolated:
            raise SandboxError("commands run in an isolated sandbox alone")
        own = {"seconds": seconds, "output_kib": output_kib}
        limits = {name: value for name, value in own.items() if value is not None}
        job = {"argv": [*argv], "environment": dict(environment or {}), "folder": folder, "stdin": ""}
        return self._run({**job, "limits": limits})

    def fault(self) -> str:
        """Why no program can run here; the empty string where one can."""
        if sys.platform != "linux" or not seccomp.supported():
            return "it needs Linux on x86-64 or ARM64"
        try:
            if self._system:
                done = self.run_command(["/bin/sh", "-c", "echo 42"], folder="/")
            else:
                done = self.run("print(6 * 7)")
        except SandboxError as error:
            return str(error)
        if done.stdout == "42\n":
            return ""
        return f"a program that prints 42 ended with code {done.code}: {done.stderr.strip()[-200:]}"

    def close(self) -> None:
        """Ends the keeper."""
        if self._keeper is not None:
            self._end()
            self._keeper = None

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.close()
        keeper = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self._keeper = subprocess.Popen(
            [keeper, "-I", "-S", "-B", str(_JAIL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={},
            cwd="/",
        )
        self._end = weakref.finalize(self, _end, self._keeper)
        self._ask(self._setup)

    @contextlib.contextmanager
    def _folder(self, mode: int) -> Iterator[dict[str, str]]:
        """Where a program runs that has no /tmp of its own. It may have a user id of its own."""
        if self._isolated:
            yield {}
            return
        with tempfile.TemporaryDirectory(
            prefix="rlcore-sandbox-", dir=os.environ.get("RLCORE_SCRATCH"), ignore_cleanup_errors=True
        ) as folder:
            os.chmod(folder, mode)
            yield {"folder": folder}

    def _run(self, job: dict[str, Any]) -> ProgramEnd:
        if self._keeper is None or self._keeper.poll() is not None:
            self._start()
        return ProgramEnd(**self._ask(job))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        keeper = self._keeper
        assert keeper is not None
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            keeper.stdin.write(json.dumps(question) + "\n")
            keeper.stdin.flush()
        line = keeper.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the keeper of the sandbox died"}
        if "error" in answer:
            self.close()
            raise SandboxError(answer["error"])
        return answer


def _end(keeper: subprocess.Popen[str]) -> None:
    keeper.kill()
    keeper.communicate()


def _shown(system: str) -> list[str]:
    """What of an image programs see; they have devices and a /tmp of their own."""
    return sorted(f"/{name}" for name in os.listdir(system) if name not in ("dev", "proc", "sys", "tmp"))


def _prefixes(python: str) -> list[str]:
    """The folders that an interpreter needs: its environment's, and those of the one it was made of."""
    wrong = f"python: found {python!r}, which is no Python interpreter"
    if shutil.which(python) is None:
        raise ConfigError(f"{wrong}.")
    done = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ConfigError(f"{wrong}: {done.stderr.strip()[-200:]}.")
    prefixes: list[str] = json.loads(done.stdout)
    return sorted({path for path in prefixes if not path.startswith("/usr")})
