"""`Sandbox`: runs untrusted Python programs through a keeper (`jail.py`) that outlives them all."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlcore import ConfigError
from rlcore_code.config import CodeConfig

Files = Mapping[str, str]
"""Names of files and what is in them; main.py is the one that is run."""

_FLAGS = ("-s", "-P", "-B")
_BARE_FLAGS = ("-I", "-S", "-B")
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache")
_ASK = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
_JAIL = Path(__file__).with_name("jail.py")


class SandboxError(RuntimeError):
    """The sandbox itself cannot do its work; nothing is known of the program."""


@dataclass(frozen=True, kw_only=True)
class Finished:
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

    Raises `ConfigError` where the config's `python` is no interpreter.
    """

    def __init__(self, config: CodeConfig, *, isolated: bool = True) -> None:
        self._isolated = isolated
        python = config.python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        limits = ("seconds", "memory_mib", "processes", "files_mib", "output_kib")
        self._setup: dict[str, Any] = {
            "isolated": isolated,
            "python": python,
            "folders": [*_SYSTEM, *_prefixes(python)],
            "parent": os.getpid(),
            **{name: getattr(config, name) for name in limits},
        }
        self._keeper: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = lambda: None

    def run(self, source: str, stdin: str = "") -> Finished:
        """The Python program `source`, given `stdin`. Raises `SandboxError` where the sandbox fails."""
        with self._folder(0o777) as folder:
            return self._run({"files": {"main.py": source}, "flags": _FLAGS, "stdin": stdin, **folder})

    def run_pair(self, judge: Files, stdin: str, program: Files) -> Finished:
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
            prefix="rlcore-code-", dir=os.environ.get("RLCORE_SCRATCH"), ignore_cleanup_errors=True
        ) as folder:
            os.chmod(folder, mode)
            yield {"folder": folder}

    def _run(self, job: dict[str, Any]) -> Finished:
        if self._keeper is None or self._keeper.poll() is not None:
            self._start()
        return Finished(**self._ask(job))

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


def _prefixes(python: str) -> list[str]:
    """The folders that an interpreter needs: its environment's, and those of the one it was made of."""
    wrong = f"--reward.code.python: found {python!r}, which is no Python interpreter"
    if shutil.which(python) is None:
        raise ConfigError(f"{wrong}.")
    done = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ConfigError(f"{wrong}: {done.stderr.strip()[-200:]}.")
    found: list[str] = json.loads(done.stdout)
    return sorted({path for path in found if not path.startswith("/usr")})
