"""What becomes of a run whose processes are killed or stopped, one at a time, and of its resume.

A run of 24 steps is left alone first. Every other must come to its metrics, by itself or when it is
resumed, but for the keys that docs/metrics.md takes out of that promise.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from common import RLCORE, Row, machine, parser, publish, say, stored_rows, table

STEPS, PROMPTS, SAMPLES = 24, 8, 4
"""Enough steps that none of the moments comes at the end of a fast machine's run."""

FLAGS = (
    *("train", "--algo", "grpo", "--model", "qwen3", "--steps", f"{STEPS}"),
    *("--save-every", "2", "--eval-every", "0"),
    *("--prompts-per-step", f"{PROMPTS}", "--group-size", f"{SAMPLES}"),
    *("--worker-health-limit", "8", "--engine-health-limit", "8", "--reward-timeout", "5"),
)
ALONE = ("--cluster", "processes")
LIMIT_S = 120.0
UNPROMISED = (
    *("time/", "perf/", "rollout/tokens_per_s", "rollout/reward_failed", "rollout/reward_timed_out"),
    *("rollout/crashed", "rollout/aborted", "rollout/failed", "engine/"),
)

ENGINE = "rlcore_local"
PROCESSES = {
    "driver": "",
    "train worker": "TrainWorker",
    "engine": ENGINE,
    "supervisor of the engine": "EngineSuperviso",
    "fork server": "rlcore_machine.fork_server",
    "fork server of rewards": "reward_worker",
    "reward worker": "reward_worker",
    "reaper": "reaper.py",
    "raylet": "raylet/raylet",
    "gcs_server": "gcs_server",
}
LAST = ("reward worker",)
"""Of several matches the innermost."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Attempt:
    """`moment`: "start", "step", "checkpoint" or "publication".

    The start of the driver is when its train worker is there, that of another process when it is there.
    """

    process: str
    number: signal.Signals
    moment: str = "step"
    ray: bool = False
    asynchronous: bool = False

    def __str__(self) -> str:
        when = {"start": "at its start", "step": "in a step"}.get(self.moment, f"in a {self.moment}")
        how = f"{', with Ray' if self.ray else ''}{', asynchronous' if self.asynchronous else ''}"
        return f"{self.number.name} of the {self.process}, {when}{how}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Of its run."""
        ahead = ("--max-staleness", "1", "--save-rollouts-every", "1") if self.asynchronous else ()
        return (*ahead, *(() if self.ray else ALONE))


KILL, STOP, TERM, HUP = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP
ATTEMPTS = (
    *(Attempt("driver", number) for number in (KILL, TERM, HUP, signal.SIGINT)),
    *(Attempt("driver", KILL, moment) for moment in ("start", "checkpoint", "publication")),
    *(Attempt("driver", TERM, moment) for moment in ("start", "checkpoint", "publication")),
    *(Attempt("train worker", number) for number in (KILL, STOP, TERM)),
    *(Attempt("train worker", KILL, moment) for moment in ("start", "checkpoint", "publication")),
    *(Attempt("train worker", STOP, moment) for moment in ("start", "publication")),
    *(Attempt("engine", number) for number in (KILL, STOP, TERM)),
    *(Attempt("engine", KILL, moment) for moment in ("start", "checkpoint", "publication")),
    *(Attempt("supervisor of the engine", number) for number in (KILL, STOP)),
    *(Attempt("fork server", number) for number in (KILL, STOP)),
    *(Attempt("fork server of rewards", number) for number in (KILL, STOP)),
    *(Attempt("reward worker", number) for number in (KILL, STOP)),
    Attempt("reaper", KILL),
    *(Attempt("driver", KILL, moment, ray=True) for moment in ("start", "step")),
    *(Attempt("train worker", number, ray=True) for number in (KILL, STOP)),
    *(Attempt(process, KILL, ray=True) for process in ("engine", "supervisor of the engine", "reaper")),
    *(Attempt("raylet", number, ray=True) for number in (KILL, STOP)),
    Attempt("gcs_server", KILL, ray=True),
    *(Attempt("driver", number, asynchronous=True) for number in (KILL, TERM)),
    *(Attempt(process, KILL, asynchronous=True) for process in ("train worker", "engine", "reward worker")),
)


class MissedError(Exception):
    """The moment of an attempt did not come, or its run was over before."""


def main() -> None:
    """A row for each attempt; those that `--only` leaves out keep the row that they have."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="attempts whose text holds this")
    args = options.parse_args()
    facts = machine(args.threads)
    signal.signal(signal.SIGHUP, lambda *_: None)  # nohup's would be inherited; this one is not
    folder = args.work / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reference = folder / "alone"
    if (code := _run(["--run-dir", str(reference), *ALONE], folder)[0].wait(LIMIT_S)) != 0:
        raise SystemExit(f"the run that is left alone ended with {code}")
    expected = _metrics(reference)
    rows: dict[str, Row] = {row["attempt"]: row for row in stored_rows("kills")}
    for number, attempt in enumerate(ATTEMPTS):
        if args.only in str(attempt):
            try:
                row = tried(attempt, folder / str(number), expected)
            except (MissedError, psutil.NoSuchProcess, subprocess.TimeoutExpired) as error:
                row = {"attempt": str(attempt), "outcome": f"**{error}**", "exit": "", "metrics": ""}
            rows[str(attempt)] = row
            say(" · ".join(map(str, row.values())))
    found = [rows[str(attempt)] for attempt in ATTEMPTS if str(attempt) in rows]
    publish("kills", facts, {"rows": found}, table(found), dry=args.dry)


def tried(attempt: Attempt, folder: Path, expected: dict[int, Any]) -> Row:
    """One attempt, and what came of it."""
    folder.mkdir()
    run_dir = folder / "run"
    command, error = _run(["--run-dir", str(run_dir), *attempt.flags], folder)
    started: set[psutil.Process] = set()
    try:
        _wait(attempt, command, run_dir)
        driver = psutil.Process(command.pid)
        started |= set(driver.children(recursive=True))
        os.kill(_process(attempt.process, command), attempt.number)
        begin = time.monotonic()
        while command.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                started |= set(driver.children(recursive=True))
            if time.monotonic() - begin > LIMIT_S:
                raise MissedError(f"it had not ended after {LIMIT_S:g} s")
            time.sleep(0.1)
        seconds = time.monotonic() - begin
        left = [one for one in psutil.wait_procs(started, timeout=20)[1] if one.is_running()]
    finally:
        if command.poll() is None:
            command.kill()
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    said = error.read_text().strip().splitlines()
    sentence = next((line for line in reversed(said) if line.startswith("error: ")), "")
    went_on = _is_whole(run_dir, expected)
    outcome = "it went on" if went_on else f"ended after {seconds:.0f} s"
    outcome += f": {sentence.removeprefix('error: ')[:160]}" if sentence else ""
    outcome += f"; **left: {', '.join(one.name() for one in left)}**" if left else ""
    outcome += "; **a traceback**" if any(line.startswith("Traceback") for line in said) else ""
    if not went_on:
        outcome += "; resumed" + ("" if _resumed(attempt, run_dir, folder) else ", **which failed**")
    if attempt.asynchronous:
        outcome += f"; {_counted(run_dir)}"
    metrics = "not promised" if attempt.asynchronous else _compared(_metrics(run_dir), expected)
    return {"attempt": str(attempt), "outcome": outcome, "exit": command.returncode, "metrics": metrics}


def _compared(found: dict[int, Any], expected: dict[int, Any]) -> str:
    """The rounding of log-probs, which depends on the batch that they were sampled in, is told apart."""
    keys = {
        key
        for step, row in expected.items()
        for key in row.keys() | found.get(step, {}).keys()
        if row.get(key) != found.get(step, {}).get(key)
    }
    if not keys:
        return "equal"
    if all(key.startswith("train/kl_engine") for key in keys):
        return "equal, but for `train/kl_engine`"
    return f"**differ: {', '.join(sorted(keys)[:4])}**"


def _counted(run_dir: Path) -> str:
    """How often each prompt was trained on: its samples in one rollout, whatever was done twice."""
    found: Counter[str] = Counter()
    for path in run_dir.glob("samples/rollout-*.jsonl"):
        found.update(json.loads(line)["prompt_id"] for line in path.read_text().splitlines())
    times = Counter(found.values())
    if times == Counter({SAMPLES: STEPS * PROMPTS}):
        return f"{STEPS * PROMPTS} prompts were trained on, each once"
    return f"**samples of a prompt: how many prompts: {dict(times)}**"


def _run(flags: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    error = folder / "error.txt"
    with error.open("wb") as err:
        process = subprocess.Popen(
            [str(RLCORE), *FLAGS, *flags],
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    return process, error


def _wait(attempt: Attempt, command: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Until the moment is there. Ends the program where it does not come."""
    deadline = time.monotonic() + LIMIT_S
    others = set(Path("/dev/shm").glob("rlcore-weights-*/*"))
    while time.monotonic() < deadline:
        if command.poll() is not None:
            raise MissedError("the run ended before its moment came")
        first = "train worker" if attempt.process == "driver" else attempt.process
        if attempt.moment == "start" and _process(first, command, wait=False):
            return
        steps = len(_metrics(run_dir))
        if attempt.moment == "step" and steps >= 3:
            return
        if attempt.moment == "checkpoint" and any(run_dir.glob("checkpoints/*.partial")):
            return
        if attempt.moment == "publication" and steps >= 2:
            before = others or set(Path("/dev/shm").glob("rlcore-weights-*/*"))
            if set(Path("/dev/shm").glob("rlcore-weights-*/*")) - before:
                return
            others = before
        time.sleep(0.001)
    raise MissedError("its moment did not come")


def _process(name: str, command: subprocess.Popen[bytes], *, wait: bool = True) -> int:
    """The process of this name; 0 where it is not there yet, unless it is waited for."""
    if name == "driver":
        return command.pid
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = list(_matching(PROCESSES[name], command.pid))
        if found or not wait:
            return (found[-1] if name in LAST else found[0]) if found else 0
        if time.monotonic() > deadline:
            raise MissedError(f"there is no {name}")
        time.sleep(0.05)


def _matching(text: str, driver: int) -> Iterator[int]:
    for one in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(one.cmdline())
            is_engine = one.name() == ENGINE or (f"-m {ENGINE}" in command and "process_guard" not in command)
            if is_engine if text == ENGINE else text in f"{one.name()} {command}":
                yield one.pid


def _metrics(run_dir: Path) -> dict[int, Any]:
    """Step → what is promised to be equal, of the last line of the step."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return {}
    finished, _, _ = path.read_text().rpartition("\n")
    rows = [json.loads(line) for line in finished.splitlines()]
    return {row["step"]: {k: v for k, v in row.items() if not k.startswith(UNPROMISED)} for row in rows}


def _is_whole(run_dir: Path, expected: dict[int, Any]) -> bool:
    return _metrics(run_dir).keys() == expected.keys()


def _resumed(attempt: Attempt, run_dir: Path, folder: Path) -> bool:
    """Whether the run, begun anew where it had not begun, comes to its end."""
    anew = [*FLAGS, "--run-dir", str(run_dir), *attempt.flags]
    alone = () if attempt.ray else ALONE
    again = ["train", "--resume", str(run_dir), *alone] if (run_dir / "run.toml").exists() else anew
    with (folder / "resumed.txt").open("wb") as err:
        done = subprocess.run(
            [str(RLCORE), *again],
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=ENVIRONMENT,
            timeout=2 * LIMIT_S,
        )
    return done.returncode == 0


if __name__ == "__main__":
    main()
