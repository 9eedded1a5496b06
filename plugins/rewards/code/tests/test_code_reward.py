"""The reward `code`: programs that pass their tests, that don't, and that pretend to."""

import json
from typing import Any, ClassVar

import pytest

from rlcore import ConfigError, Json, Prompt, RewardPart
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code, _same_output, program_of
from rlcore_testing.rewards import Case, RewardConformance, sample

ECHO = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
ADD = ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]
RIGHT = "def add(a, b):\n    return a + b"


def block(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


@pytest.mark.full
class TestCode(RewardConformance):
    part = RewardPart(name="code", factory="rlcore_code.reward:Code", config=CodeConfig(seconds=20))
    parts = frozenset({"passed", "timed_out"})
    cases: ClassVar = (
        Case(sample(block("print(sum(map(int, input().split())))"), ECHO), 1.0),
        Case(sample("print(3)", ECHO), 0.0),
        Case(sample(f"<think>\n\n</think>\n\n{RIGHT}", ADD), 1.0),
        Case(sample(block(RIGHT), ADD), 1.0),
        Case(sample(block("def add(a, b):\n    return 3"), ADD), 0.0),
        Case(sample(block(RIGHT), "\n".join(ADD)), 1.0),
        Case(sample(RIGHT, None), None),
        Case(sample(RIGHT, {"inputs": ["1"], "outputs": []}), None),
    )


@pytest.fixture(scope="module")
def share() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


def test_the_share_of_tests_that_pass(share: Code) -> None:
    [asserts] = share.score([sample(block("def add(a, b):\n    return 3"), ADD)])
    [streams] = share.score([sample("print(7)", ECHO)])
    assert (asserts.value, streams.value) == (0.5, 0.5)
    assert streams.parts == {"passed": 0.5, "timed_out": 0.0}


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(0)",
        "print('[true, true]', flush=True)\nimport os; os._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nexit()",
    ],
)
def test_a_solution_that_ends_early_passes_nothing(share: Code, source: str) -> None:
    [score] = share.score([sample(source, ADD)])
    assert score.value == 0.0


def test_what_a_solution_prints_is_not_the_result(share: Code) -> None:
    [score] = share.score([sample(f"{RIGHT}\nprint('noise', end='')", ADD)])
    assert score.value == 1.0


def test_a_program_that_hangs_has_failed_and_says_so() -> None:
    reward = Code(CodeConfig(seconds=1, value="share"))
    hanging = "while True: pass"
    scores = [reward.score([sample(hanging, label)])[0] for label in (ADD, ECHO)]
    assert [(score.value, score.parts["timed_out"]) for score in scores] == [(0.0, 1.0)] * 2


def test_a_failing_program_with_right_output_has_failed(share: Code) -> None:
    label = {"inputs": [""], "outputs": ["3"]}
    [score] = share.score([sample("print(3)\nraise ValueError", label)])
    assert score.value == 0.0


CHECK = "def check(f):\n    assert f(1, 2) == 3\n"


@pytest.mark.parametrize(
    ("label", "fault"),
    [
        (None, "holds no tests"),
        ("", "holds no tests"),
        ([1], "holds no tests"),
        ({}, "holds no tests"),
        ({"inputs": [], "outputs": []}, "holds no tests"),
        ({"inputs": "1", "outputs": "1"}, "holds no tests"),
        ({"inputs": ["1"], "outputs": [1]}, "holds no tests"),
        ({"inputs": ["1"], "outputs": ["1"], "kind": "x"}, "the key 'kind'"),
        ({"inputs": ["1"], "outputs": ["\n"]}, "expects no output"),
        ({"inputs": ["1"], "outputs": ["x"], "fn_name": "f"}, "must be JSON"),
        ("assert add(1, 2 == 3", "no Python: '(' was never closed"),
        ("add(1, 2) == 3", "runs no assert"),
        ("print(add(1, 2))", "runs no assert"),
        ("check(add)", "runs no assert"),
        ("assert (add(1, 2) == 3, 'three')", "runs no assert"),
        ("if __name__ == '__main__':\n    assert add(1, 2) == 3", "runs no assert"),
        (CHECK, "nothing calls 'check'"),
        ("def test_add():\n    assert add(1, 2) == 3", "nothing calls 'test_add'"),
        ("class T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)", "TestCase"),
        ("from solution import add\nassert add(1, 2) == 3", "imports 'solution'"),
        ("assert True", "uses no name that a program defines"),
    ],
)
def test_a_label_that_tests_nothing_is_refused(share: Code, label: Json, fault: str) -> None:
    [complaint] = Code.prompt_complaints(CodeConfig(), [Prompt(prompt_id="p", text="?", label=label)])
    assert fault in complaint
    [outcome] = checked_scores(share, [sample("print(1)", label)])
    assert isinstance(outcome, Failure)
    assert complaint in outcome.reason


@pytest.mark.parametrize(
    ("label", "program"),
    [
        (json.dumps(ECHO), "print(sum(map(int, input().split())))"),
        (json.dumps(ADD), RIGHT),
        ([CHECK, "check(add)"], RIGHT),
        ({"input": [["1", "2"]], "output": [["1", "2"]]}, "print(input())\nprint(input())"),
        ({"inputs": ["1\n2", "[3]\n[]"], "outputs": ["3", "[3]"], "fn_name": "add"}, RIGHT),
        (
            {"inputs": [[[1]]], "outputs": [[2]], "fn_name": "f"},
            "class Solution:\n    def f(self, x): return 2,",
        ),
        (json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]), "print(3)"),
        (
            [{"input": "1", "output": "2", "testtype": "functional", "metadata": {"func_name": "f"}}],
            "f = {1: 2}.get",
        ),
        (
            {"language": "python", "test_cases": [{"input": "1", "output": "3", "type": "stdin_stdout"}]},
            "print(3)",
        ),
        ("import numpy\nnumpy.testing.assert_equal(add(1, 2), 3)", None),
        ("assert sum(10, 15) == 6", None),
    ],
)
def test_labels_of_public_data_sets(share: Code, label: Json, program: str | None) -> None:
    [complaint] = Code.prompt_complaints(CodeConfig(), [Prompt(prompt_id="p", text="?", label=label)])
    assert not complaint
    if program is not None:
        right, wrong = share.score([sample(program, label), sample("print(0)\ndef f(x): return 0", label)])
        assert (right.value, wrong.value) == (1.0, 0.0)


def test_the_reference_of_a_prompt_passes_its_tests() -> None:
    def prompt(reference: Json) -> Prompt:
        return Prompt(prompt_id="p", text="?", label=ADD, metadata={"reference": reference})

    prompts = [
        prompt(RIGHT),
        prompt(["def add(a, b): return 3", block(RIGHT)]),
        prompt("def add(a, b): return 3"),
    ]
    assert list(map(bool, Code.prompt_complaints(CodeConfig(), prompts))) == [False, False, True]
    assert not any(Code.prompt_complaints(CodeConfig(reference=""), prompts))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```\ntext\n```py\nb\n```", "b\n"),
        ("```python\ncut off", "cut off"),
        ("```bash\npip install x\n```\nCode:\n```python\na\n```\nRun:\n```bash\npython a.py\n```", "a\n"),
        ("```python\na\n```\nOutput:\n```text\n3\n```", "a\n"),
        ('```cpp\nint main(){}\n```\n``` python title="a.py"\na\n```', "a\n"),
        ("```json\n1\n```\n~~~py\na\n```\n~~~", "a\n```\n"),
        ("1. Code:\n\n   ```python\n   if a:\n       b\n   ```\n\n2. Run.", "if a:\n    b\n"),
        ("````python\na = '''\n```\n'''\n````", "a = '''\n```\n'''\n"),
        ("````markdown\n```python\na\n```\n````", "a\n"),
        ("<answer>\n```{.python}\na\n```\n</answer>", "a\n"),
        ("```cpp\nint main(){}\n```\n```python\na\n", "a\n"),
        ("a = 1", "a = 1"),
    ],
)
def test_the_last_block_is_the_program(text: str, source: str) -> None:
    assert program_of(text) == source


@pytest.mark.parametrize(
    ("output", "tolerance", "same"),
    [
        ("0.3333333 ok\n2\n", 0.0, False),
        ("0.3333333 ok\n2\n", 1e-6, True),
        ("0.3333333 ok\n2.000001\n", 1e-6, True),
        ("0.34 ok\n2\n", 1e-6, False),
        ("0.3333333 no\n2\n", 1e-6, False),
        ("0.3333333 ok 2\n", 1e-6, False),
        ("nan ok\n2\n", 1e-6, False),
        ("1e999 ok\n2\n", 1e-6, False),
        ("0.33333333 ok\x0b2\n", 0.0, False),
        ("0.33333333 ok\n2\u2028\n", 0.0, False),
        ("0.33333333\x0bok\n2\n", 1e-6, False),
    ],
)
def test_a_tolerance_is_of_numbers_alone(output: str, tolerance: float, same: bool) -> None:
    assert _same_output(output, "0.33333333 ok\n2\n", tolerance) == same


def test_an_interpreter_of_ones_own_must_be_one() -> None:
    with pytest.raises(
        ConfigError, match=r"^--reward.code.python: found '/gone/python', which is no Python interpreter\.$"
    ):
        Code.check(CodeConfig(python="/gone/python"))


def test_tests_may_hold_any_text(share: Code) -> None:
    label: dict[str, Any] = {"inputs": ["ä\u2028\ud83d\n"], "outputs": [json.dumps("ä")]}
    [outcome] = checked_scores(
        share, [sample("import json\nprint(json.dumps(input()[0], ensure_ascii=False))", label)]
    )
    assert not isinstance(outcome, Failure)
