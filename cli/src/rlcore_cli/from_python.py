"""`rlcore.train(…)`, `rlcore.evaluate(…)`, `rlcore.plan(…)`: the commands, from a script or a notebook.

Each starts the program in a process of its own and waits for it. So settings, checks and sentences are those
of the command line, a notebook's event loop is left alone, and a script needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, MissingPackageError, RunError, UserError
from rlcore.api.records import Kind
from rlcore.checkpoint.folder import checkpoints
from rlcore.config import toml
from rlcore.preparation.run_folder import CHECKPOINTS, RUN_TOML
from rlcore.tracking.run_files import METRICS_FILE, SAMPLES_FOLDER, read_metrics
from rlcore_cli.function_source import write_functions

if TYPE_CHECKING:
    import pandas

PROGRAM = (sys.executable, "-c", "from rlcore_cli.main import main; main()")
SWITCHES = {*(kind.value for kind in Kind), "eval"}
"""Tables in which true and false are written `--x` and `--no-x`; a library's own field takes `=true`."""
OF_FUNCTIONS = ("reward", "generator")
"""Settings that a Python function may be given for."""
NOTHING_FITS = 1
"""The exit code of `rlcore plan` where no layout fits."""
STOP_S = 120.0
"""How long an interrupted run may take to stop what it started."""
STDERR = 2
"""The descriptor of a child's errors."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Run:
    """The folder of a run, still going on or ended: `rlcore.Run("runs/…")`.

    `summary`: of a run that `rlcore.train` made, what `rlcore train --json` says at its end: `steps`,
    `seconds`, `eval`, `exit_reason`. Empty otherwise.
    """

    folder: Path
    summary: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if not (self.folder / RUN_TOML).is_file():
            raise ConfigError(f"{self.folder}: found no {RUN_TOML} there, expected the folder of a run.")

    def _repr_html_(self) -> str:
        """Its curve and its last steps, for a notebook."""
        from rlcore_cli.run_html import run_html

        file = self.folder / METRICS_FILE
        return run_html(str(self.folder), read_metrics(file) if file.exists() else [])

    def view(self) -> str:
        """Open the page of `rlcore view` on this run, while it goes on or afterwards. Returns its address.

        The page ends with this process, or when nobody has looked for an hour. On another machine, forward
        the port of the address (docs/watching.md). `UserError` where the page cannot start.
        """
        process = subprocess.Popen(
            [*PROGRAM, "view", str(self.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            preexec_fn=_die_with_parent,
        )
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise UserError(process.communicate()[1].strip().removeprefix("error: "))
        threading.Thread(target=process.communicate, daemon=True).start()
        return address

    @property
    def metrics(self) -> pandas.DataFrame:
        """A row a step, a column a key of docs/metrics.md; `step` is the index."""
        rows = read_metrics(self.folder / METRICS_FILE)
        return _pandas().DataFrame(rows).set_index("step") if rows else _pandas().DataFrame()

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting, resolved, in tables as in `run.toml`."""
        return tomllib.loads((self.folder / RUN_TOML).read_text(encoding="utf-8"))

    def samples(self, step: int | None = None, kind: str = "eval") -> pandas.DataFrame:
        """The answers of the evaluation after `step`; None: the newest.

        kind="rollout": the samples that step trained on, where the run has `save_rollouts_every`.
        """
        files = {
            int(file.stem.rpartition("-")[2]): file
            for file in self.folder.glob(f"{SAMPLES_FOLDER}/{kind}-*.jsonl")
        }
        number = max(files, default=None) if step is None else step
        if number not in files:
            there = ", ".join(map(str, sorted(files))) or "none"
            raise ConfigError(f"step: found {number}, expected one with {kind} samples: {there}.")
        lines = files[number].read_text(encoding="utf-8").splitlines()
        return _pandas().DataFrame([json.loads(line) for line in lines])

    @property
    def checkpoints(self) -> list[Path]:
        """The complete ones, the oldest first."""
        return checkpoints(self.folder / CHECKPOINTS)


def train(**settings: Any) -> Run:
    """Train, as `rlcore train` does, and wait for the end.

    >>> import rlcore
    >>> run = rlcore.train(algo="grpo", model="qwen3", steps=20, loss={"clip_high": 0.28})  # doctest: +SKIP
    >>> run.metrics["rollout/reward_mean"].plot()  # doctest: +SKIP

    `settings`: those of the command line, with underscores; tables are dictionaries, as in TOML
    (docs/configuration.md). `reward` and `generator` take Python functions as well. Progress goes to stderr.

    Raises `UserError` with the sentence of the command line before anything starts, `RunError` for a run that
    could not go on, KeyboardInterrupt after the run has stopped, as Ctrl-C stops it (docs/checkpoints.md).
    """
    if settings.get("dry_run"):
        raise ConfigError("dry_run: makes no run; rlcore train --dry-run prints the settings.")
    summary = _command("train", {**settings, "json": True})
    return Run(Path(summary["run"]), summary)


def evaluate(**settings: Any) -> dict[str, Any]:
    """Evaluate a model on named sets, as `rlcore eval` does: `rlcore.evaluate(model="dir", eval={…})`.

    Returns its JSON: `eval` holds score and metrics of each set, `samples` the file of all answers. Errors as
    of `train`.
    """
    if settings.get("dry_run"):
        raise ConfigError("dry_run: evaluates nothing; rlcore eval --dry-run prints the settings.")
    return _command("eval", {**settings, "json": True})


def plan(**settings: Any) -> dict[str, Any]:
    """The layouts that fit, as `rlcore plan --json` says them: `rlcore.plan(model="qwen3-8b", gpus=8, …)`."""
    return _command("plan", {**settings, "json": True}, answers=(0, NOTHING_FITS))


def arguments(settings: Mapping[str, Any]) -> list[str]:
    """The command-line arguments of `settings`."""
    return [argument for name, value in toml.flatten(settings) for argument in _flags(name, value)]


def _flags(name: str, value: Any) -> Iterator[str]:
    table, _, key = name.partition(".")
    evaluation, _, what = key.partition(".")
    if table == "eval" and evaluation and what in ("", "task", "data"):  # no flags of their own
        yield f"--eval={evaluation}={value}"
    elif isinstance(value, bool) and (not key or table in SWITCHES):
        yield flag_name(name if value else f"no_{name}")
    elif isinstance(value, list | tuple):
        yield from (f"{flag_name(name)}={_text(item)}" for item in value)
        if not value:
            yield flag_name(f"no_{name}")
    else:
        yield f"{flag_name(name)}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return toml.NONE
    if isinstance(value, bool | dict):
        return json.dumps(value)
    return str(value)


def _command(name: str, settings: Mapping[str, Any], answers: Collection[int] = (0,)) -> dict[str, Any]:
    """The JSON that the command prints. `answers`: the exit codes with which it prints any."""
    with tempfile.TemporaryDirectory(prefix="rlcore-functions-") as folder:
        written = write_functions(settings, OF_FUNCTIONS, Path(folder))
        output, code = _run_program([*PROGRAM, name, *arguments(written)])
    return _answer(output, code, answers)


def _answer(output: str, code: int, answers: Collection[int] = (0,)) -> dict[str, Any]:
    """The last line of `output`, or what it tells as an exception."""
    answer: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):
        # A plan takes several lines, every other answer the last one.
        answer = json.loads(output if output.startswith("{\n") else output.splitlines()[-1])
    if answer and "error" not in answer and code in answers:
        return answer
    sentence = str(answer.get("error") or f"the rlcore program ended with exit code {code}.")
    if code == 130:
        raise KeyboardInterrupt(sentence)
    raise UserError(sentence) if code == UserError.exit_code else RunError(sentence)


def _run_program(command: Sequence[str]) -> tuple[str, int]:
    """The output and the exit code of `command`, whose errors and progress are shown as they come."""
    is_shown = _is_terminal(sys.stderr)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=None if is_shown else subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        # A function may use what lies beside the script, or beside the notebook.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
        preexec_fn=_die_with_parent,
    )
    lines: list[str] = []
    # In threads: a pipe that nobody reads fills up, and the run would stand still.
    readers = [threading.Thread(target=_read, args=(process.stdout, lines.append), daemon=True)]
    if not is_shown:
        # asked for at each line: a notebook has another stderr in each cell
        readers.append(threading.Thread(target=_read, args=(process.stderr, _show), daemon=True))
    for reader in readers:
        reader.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = _interrupted(process)
    except BaseException:  # a time limit of the caller's, for example
        _interrupted(process)
        raise
    for reader in readers:
        reader.join(10)
    return "".join(lines), code


def _interrupted(process: subprocess.Popen[str]) -> int:
    """The run stops as after Ctrl-C, however often it is pressed; its exit code."""
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_S
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(KeyboardInterrupt):
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                break
            return 130
    process.kill()
    process.wait()
    return 130


def _read(stream: TextIO, tell: Any) -> None:
    with stream:
        for line in stream:
            tell(line)


def _show(line: str) -> None:
    if not line.startswith("error: "):  # the exception says it
        print(line, end="", file=sys.stderr, flush=True)


def _is_terminal(stream: TextIO) -> bool:
    """Whether a child process writes where `stream` does, on a terminal.

    A notebook's has another descriptor, that of the terminal of Jupyter, or none.
    """
    try:
        return stream.fileno() == STDERR and os.isatty(STDERR)
    except (OSError, ValueError):
        return False


def _die_with_parent() -> None:
    """A run whose script is killed ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingPackageError("a data frame needs pandas: pip install pandas.") from None
    return pandas
