"""The tables of TRL's, verl's and prime-rl's settings, and the sentences that come of their rows."""

import pytest

from rlcore_import.comparison import (
    COMPARED,
    IMPLIED,
    NONE,
    Meaning,
    Row,
    counterpart_sentence,
    hints,
    meanings,
)


def test_settings_and_flags_of_equal_number_stand_for_one_another() -> None:
    assert list(meanings([Row("`a`, `b.c`", "`--x`, `--y`", "of [both](page.md).")])) == [
        ("a", Meaning("--x", remark="of both.")),
        ("b.c", Meaning("--y", remark="of both.")),
    ]
    assert list(meanings([Row("`a`", "`--x`, `--y`")])) == [("a", Meaning("--x, --y"))]
    assert list(meanings([Row("words", "`--x`")])) == []


def test_dots_repeat_the_last_setting_that_had_a_value() -> None:
    rows = [Row('`a = "one"`', "`--x`"), Row("`b`", "`--y`"), Row("`…=two`, `…=three`", "`--x 2`, `--x 3`")]
    assert [(name, meaning.value) for name, meaning in meanings(rows)] == [
        ("a", "one"),
        ("b", ""),
        ("a", "two"),
        ("a", "three"),
    ]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([Meaning("--x", remark="so")], "here it is --x (so)"),
        ([Meaning("--x", "one")], "here it is --x for one"),
        ([Meaning("--x", "one"), Meaning(NONE, "two")], "here it is --x for one, nothing for two"),
        (
            [Meaning("--x", "one"), Meaning("--y", "two"), Meaning("--x", "three")],
            "here it is --x for one and three, --y for two",
        ),
        ([Meaning(NONE)], "rlcore has nothing of the kind"),
        ([Meaning(IMPLIED, remark="so")], "nothing is to be set here (so)"),
    ],
)
def test_a_hint(found: list[Meaning], sentence: str) -> None:
    assert counterpart_sentence(found) == sentence


@pytest.mark.parametrize("file", COMPARED)
def test_each_setting_of_a_table_has_one_hint(file: str) -> None:
    found = dict(hints(file))
    assert len(found) == len(list(hints(file))) > 80
    assert all(hint.strip() and "`" not in hint and "](" not in hint for hint in found.values())
    assert not [name for name in found if " " in name or "=" in name or "…" in name]
