"""What the judge's process may say, and what becomes of anything else."""

import pytest

from rlcore_code.reward import _verdict
from rlcore_sandbox import ProgramEnd


@pytest.mark.parametrize("text", ["[true, false]", " [true,\nfalse] "])
def test_a_verdict_is_a_boolean_for_each_test(text: str) -> None:
    assert _verdict(ProgramEnd(how="ended", code=0, stdout=text, stderr=""), 2) == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        *("", "true", "2", "null", "nonsense", '{"0": true, "1": true}', '"ab"', "[true", "[true, true] x"),
        *("[]", "[true]", "[true, true, true]", str([True] * 500).lower()),
        *(
            "[1, 1]",
            "[1.0, true]",
            "[100, 900]",
            "[NaN, NaN]",
            "[Infinity, true]",
            '["true", true]',
            "[[], []]",
        ),
        "[" * 100_000,
    ],
)
def test_anything_else_is_a_failed_answer(text: str) -> None:
    assert _verdict(ProgramEnd(how="ended", code=0, stdout=text, stderr=""), 2) == [False, False]


@pytest.mark.parametrize(("how", "code"), [("ended", 1), ("ended", 247), ("timeout", 247), ("output", 247)])
def test_a_judge_that_did_not_end_well_has_said_nothing(how: str, code: int) -> None:
    done = ProgramEnd(how=how, code=code, stdout="[true, true]", stderr="")  # type: ignore[arg-type]  # a str
    assert _verdict(done, 2) == [False, False]
