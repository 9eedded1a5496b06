"""The reward `code`: whether the program of a response passes the tests of its prompt."""

import json
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.errors import ConfigError
from rlcore.types import Json, Sample, Score
from rlcore_code import seccomp
from rlcore_code.config import CodeConfig
from rlcore_code.sandbox import Finished, Sandbox, SandboxError

_FENCED = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)

HARNESS = """
import json, os, sys
def _main(exec=exec, write=os.write, dumps=json.dumps, compile=compile, BaseException=BaseException):
    job = json.loads(sys.stdin.read())
    results, space, last = [], {"__name__": "solution"}, "\\n" + job["token"] + " "
    try:
        exec(compile(job["source"], "solution.py", "exec"), space)
        for test in job["tests"]:
            try:
                exec(compile(test, "test.py", "exec"), space)
                results.append(True)
            except BaseException:
                results.append(False)
    except BaseException:
        results = [False] * len(job["tests"])
    write(1, (last + dumps(results) + "\\n").encode())
_main()
"""
"""Runs the solution, then each test in its namespace; the token shows that it came to its end."""


@dataclass(frozen=True)
class Streams:
    """Tests that give a program its standard input and expect its standard output."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Asserts:
    """Tests that are Python code, run behind the solution: one that raises has failed."""

    tests: Sequence[str]


class Code:
    """1.0 where a program passes all tests, else 0.0; or the share of them.

    Every program runs in the sandbox (`rlcore_code.jail`). One that takes too long, or writes too much, has
    failed that test: this is the policy's doing, other than a failure of the sandbox, which is no score.
    Parts: `passed`, the share of the tests (with `value` "all": of those up to the first that failed);
    `timed_out`, 1.0 where a test took too long.
    """

    def __init__(self, config: CodeConfig) -> None:
        self._config = config
        self._sandbox = _sandbox(config)

    @classmethod
    def check(cls, config: CodeConfig) -> None:
        """Raises `ConfigError` where programs cannot be isolated here."""
        _sandbox(config).close()

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label without tests."""
        tests = _tests(samples[0].prompt.label)
        return [self._judge(program_of(sample.text), tests) for sample in samples]

    def _judge(self, source: str, tests: Streams | Asserts) -> Score:
        passed, timed_out = (
            self._streams(source, tests) if isinstance(tests, Streams) else self._asserts(source, tests)
        )
        count = len(tests.pairs) if isinstance(tests, Streams) else len(tests.tests)
        share = sum(passed) / count
        value = share if self._config.value == "share" else float(share == 1)
        return Score(value=value, parts={"passed": share, "timed_out": float(timed_out)})

    def _streams(self, source: str, tests: Streams) -> tuple[list[bool], bool]:
        passed: list[bool] = []
        for stdin, expected in tests.pairs:
            done = self._sandbox.run(source, stdin)
            passed.append(_succeeded(done) and _lines(done.stdout) == _lines(expected))
            # A program that hangs does so in every test, and each would take its full time.
            if done.how == "timeout" or (self._config.value == "all" and not passed[-1]):
                return passed, done.how == "timeout"
        return passed, False

    def _asserts(self, source: str, tests: Asserts) -> tuple[list[bool], bool]:
        token = secrets.token_hex(16)
        job = {"source": source, "tests": list(tests.tests), "token": token}
        done = self._sandbox.run(HARNESS, json.dumps(job))
        told = [line for line in done.stdout.splitlines() if line.startswith(f"{token} ")]
        if done.how != "ended" or not told:
            return [], done.how == "timeout"
        passed: list[bool] = json.loads(told[-1].removeprefix(token))
        return passed, False


def _sandbox(config: CodeConfig) -> Sandbox:
    """A sandbox that works, isolated where the kernel allows it."""
    if sys.platform != "linux" or not seccomp.supported():
        raise ConfigError("--reward code needs Linux on x86-64 or ARM64, where programs can be isolated.")
    reason = ""
    for isolated in (True, False) if config.allow_unisolated else (True,):
        try:
            sandbox = Sandbox(config, isolated=isolated)
            done = sandbox.run("print(6 * 7)")
        except SandboxError as error:
            reason = reason or str(error)
            continue
        if done.stdout == "42\n":
            return sandbox
        sandbox.close()
        reason = (
            reason or f"a program that prints 42 ended with code {done.code}: {done.stderr.strip()[-200:]}"
        )
    raise ConfigError(
        f"--reward code: programs of the policy cannot be isolated here ({reason}); run where namespaces are "
        "allowed (as root with CAP_SYS_ADMIN, or with user namespaces), or add "
        "--reward.code.allow-unisolated, with which they may read this machine's files."
    )


def program_of(text: str) -> str:
    """The last fenced block of a response, or all of it where there is none."""
    blocks: list[str] = _FENCED.findall(text)
    return blocks[-1] if blocks else text


def _succeeded(done: Finished) -> bool:
    return done.how == "ended" and done.code == 0


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _tests(label: Json) -> Streams | Asserts:
    if isinstance(label, str) and label.strip():
        return Asserts([label])
    if isinstance(label, list | tuple) and label and all(isinstance(test, str) for test in label):
        return Asserts(label)
    if isinstance(label, dict) and set(label) == {"inputs", "outputs"}:
        inputs, outputs = label["inputs"], label["outputs"]
        texts = isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) > 0
        if texts and all(isinstance(text, str) for text in (*inputs, *outputs)):
            return Streams(list(zip(inputs, outputs, strict=True)))
    raise ValueError(
        "the label holds no tests: expected Python code, a list of such, or "
        '{"inputs": […], "outputs": […]} with as many texts in each'
    )
