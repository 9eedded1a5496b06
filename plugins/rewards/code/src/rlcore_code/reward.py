"""The reward `code`: whether the program of a response passes the tests of its prompt."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from operator import and_, not_, or_
from pathlib import Path

from rlcore import ConfigError, Prompt, Sample, Score, answer_of
from rlcore_code.config import CodeConfig
from rlcore_code.labels import Asserts, Streams, tests_of
from rlcore_sandbox import ProgramEnd, Sandbox, SandboxLimits
from rlcore_toolkit import complaints_of, fenced_blocks

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_WORD = re.compile(r"[^ \t\r]+")
_LANGUAGES = {"", "python", "py", "python3"}
_NESTED = {"markdown", "md"}
_BLANKS = " \t\r\n"

_HERE = Path(__file__).parent
_WIRE = (_HERE / "wire.py").read_text()
_JUDGE = {"main.py": (_HERE / "judge_process.py").read_text(), "wire.py": _WIRE}
_PROGRAM = {"main.py": (_HERE / "program_process.py").read_text(), "wire.py": _WIRE}


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

    @classmethod
    def prompt_complaints(cls, config: CodeConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Labels without tests that can fail, and tests that the prompt's own reference does not pass."""
        reward = cls(config) if any(config.reference in prompt.metadata for prompt in prompts) else None
        return complaints_of(lambda prompt: cls._check(prompt, config.reference, reward), prompts)

    @staticmethod
    def _check(prompt: Prompt, key: str, reward: "Code | None") -> None:
        tests, reference = tests_of(prompt.label), prompt.metadata.get(key)
        if reward is None or reference is None:
            return
        sources = reference if isinstance(reference, list | tuple) else [reference]
        if not any(reward._judge(program_of(str(source)), tests).parts["passed"] == 1 for source in sources):
            raise ValueError(
                f"its own {key!r} does not pass its tests, so perhaps no program can; mend the row, or name "
                "another key of the metadata by --reward.code.reference"
            )

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label without tests."""
        tests = tests_of(samples[0].prompt.label)
        longest = self._config.files_mib << 18  # in characters, of four bytes at most: it must fit into /tmp
        return [self._judge(program_of(answer_of(sample)[:longest]), tests) for sample in samples]

    def _judge(self, source: str, tests: Streams | Asserts) -> Score:
        if isinstance(tests, Streams):
            passed, timed_out = self._streams(source, tests)
        else:
            passed, timed_out = self._asserts(source, tests)
        counts = [*map(or_, tests.counts, map(not_, passed)), *tests.counts[len(passed) :]]
        share = sum(map(and_, passed, counts)) / sum(counts)
        value = share if self._config.value == "share" else float(share == 1)
        return Score(value=value, parts={"passed": share, "timed_out": float(timed_out)})

    def _streams(self, source: str, tests: Streams) -> tuple[list[bool], bool]:
        passed: list[bool] = []
        for stdin, expected in tests.pairs:
            done = self._sandbox.run(source, stdin)
            passed.append(_succeeded(done) and _same_output(done.stdout, expected, self._config.tolerance))
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
    """The last fenced block of a response that can be Python, or all of it where there is none.

    A block of Markdown counts by the blocks in it.
    """
    blocks = [
        inner
        for language, content in fenced_blocks(text)
        for inner in (fenced_blocks(content) if language in _NESTED else [(language, content)])
    ]
    programs = [content for language, content in blocks if language in _LANGUAGES]
    return programs[-1] if programs else text


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


def _same_output(output: str, expected: str, tolerance: float) -> bool:
    """Whether the lines are equal up to white space at their ends; with a tolerance, numbers up to it."""
    first, second = _lines(output), _lines(expected)
    if first == second or not tolerance:
        return first == second
    return len(first) == len(second) and all(
        len(words) == len(others)
        and all(_is_near(word, other, tolerance) for word, other in zip(words, others, strict=True))
        for words, others in zip(map(_WORD.findall, first), map(_WORD.findall, second), strict=True)
    )


def _is_near(word: str, other: str, tolerance: float) -> bool:
    if word == other:
        return True
    if not _NUMBER.fullmatch(word) or not _NUMBER.fullmatch(other):
        return False
    value, goal = float(word), float(other)
    return math.isfinite(value) and abs(value - goal) <= tolerance * max(1.0, abs(goal))


def _lines(text: str) -> list[str]:
    return [line.rstrip(_BLANKS) for line in text.rstrip(_BLANKS).split("\n")]
