"""The reward `code`: whether the program of a response passes the tests of its prompt."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcore import ConfigError, Json, Sample, Score
from rlcore_code.config import CodeConfig
from rlcore_sandbox import ProgramEnd, Sandbox, SandboxLimits

_FENCED = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)

_HERE = Path(__file__).parent
_WIRE = (_HERE / "wire.py").read_text()
_JUDGE = {"main.py": (_HERE / "judge_process.py").read_text(), "wire.py": _WIRE}
_PROGRAM = {"main.py": (_HERE / "program_process.py").read_text(), "wire.py": _WIRE}


@dataclass(frozen=True)
class Streams:
    """Tests that give a program its standard input and expect its standard output."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Asserts:
    """Tests that are Python code and use what the solution defines: one that raises has failed."""

    tests: Sequence[str]


class Code:
    """1.0 where a program passes all tests, else 0.0; or the share of them.

    Every program runs in the sandbox, and what is expected of it stays outside: the output of
    `Streams` is compared here, and `Asserts` run in a process of their own (`judge_process.py`). A program
    that takes too long, writes too much, or answers nonsense has failed: this is the policy's doing, other
    than a failure of the sandbox, which is no score.
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
        longest = self._config.files_mib << 18  # in characters, of four bytes at most: it must fit into /tmp
        return [self._judge(program_of(sample.text[:longest]), tests) for sample in samples]

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
        limit = self._config.output_kib * 1024
        job = {"source": source, "tests": list(tests.tests), "limit": limit}
        done = self._sandbox.run_pair(_JUDGE, json.dumps(job), _PROGRAM)
        return _verdict(done, len(tests.tests)), done.how == "timeout"


def _sandbox(config: CodeConfig) -> Sandbox:
    """A sandbox that works, isolated where the kernel allows it."""
    names = ("seconds", "memory_mib", "processes", "files_mib", "output_kib")
    limits = SandboxLimits(**{name: getattr(config, name) for name in names})
    faults: list[str] = []
    for isolated in (True, False) if config.allow_unisolated else (True,):
        try:
            sandbox = Sandbox(limits, python=config.python, isolated=isolated)
        except ConfigError as error:
            raise ConfigError(f"--reward.code.{error}") from error
        fault = sandbox.fault()
        if not fault:
            return sandbox
        sandbox.close()
        faults.append(fault)
    raise ConfigError(
        f"--reward code: programs of the policy cannot be isolated here ({faults[0]}); run where "
        "namespaces are allowed (as root with CAP_SYS_ADMIN, or with user namespaces), or add "
        "--reward.code.allow-unisolated. With it, the programs may do what you may: read and delete files, "
        "kill processes, those of the run too, and read their environment with its tokens."
    )


def program_of(text: str) -> str:
    """The last fenced block of a response, or all of it where there is none."""
    blocks: list[str] = _FENCED.findall(text)
    return blocks[-1] if blocks else text


def _verdict(done: ProgramEnd, tests: int) -> list[bool]:
    """Which tests passed, as the judge's process says; none where it says anything else."""
    try:
        passed = json.loads(done.stdout) if _succeeded(done) else None
    except (ValueError, RecursionError):
        passed = None
    if not isinstance(passed, list) or len(passed) != tests or not all(type(told) is bool for told in passed):
        return [False] * tests
    return passed


def _succeeded(done: ProgramEnd) -> bool:
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
