"""Rows that give responses: what becomes of them, and what is refused with file, line and reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore.api.errors import DataError
from rlcore_files.config import FileConfig
from rlcore_files.source import FileSource

USER, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
TRAINED = {**SAID, "train": True}


def source(tmp_path: Path, *rows: Any, **settings: Any) -> FileSource:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource(FileConfig(path=str(path), **settings))


def test_responses(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "response": "b"},
        {"prompt": [USER], "response": "b", "label": "c"},
        {"prompt": [USER], "response": [SAID, USER, {**SAID, "train": False}]},
        {"messages": [USER, SAID]},
        {"messages": [USER, SAID], "prompt": "a", "response": "b"},
    ]
    found = source(tmp_path, *rows).with_responses().train
    assert [(p.text, p.responses, p.label) for p in found] == [
        ("a", ("b",), "b"),
        ((USER,), ("b",), "c"),
        ((USER,), ((TRAINED, USER, {**SAID, "train": False}),), "ho"),
        ((USER,), ((TRAINED,),), "ho"),
        ("a", ("b",), "b"),
    ]


def test_pairs_and_other_keys(tmp_path: Path) -> None:
    rows = [{"q": "a", "good": "b", "bad": "c"}, {"q": [USER], "good": [SAID], "bad": "c"}]
    keys = {"prompt_key": "q", "chosen_key": "good", "rejected_key": "bad"}
    found = source(tmp_path, *rows, **keys).with_pairs().train
    assert [p.responses for p in found] == [("b", "c"), ((TRAINED,), "c")]
    row = {"messages": [USER, {**SAID, "weight": 0}, USER, {**SAID, "weight": 1}]}
    [chat] = source(tmp_path, row, train_key="weight").with_responses().train
    assert [message.get("train") for message in chat.responses[0]] == [False, None, True]  # type: ignore[union-attr] # messages


def test_a_chat_as_json_text_is_a_chat(tmp_path: Path) -> None:
    others = ["[1]", '[{"from": "NYC", "to": "LA"}]', '[{"role": "admin", "name": "x"}]']
    rows = [{"prompt": prompt, "response": "b"} for prompt in (json.dumps([USER]), *others)]
    assert [p.text for p in source(tmp_path, *rows).with_responses().train] == [(USER,), *others]
    found = source(tmp_path, {"conversations": [USER, SAID]})
    with pytest.raises(DataError, match=r"line 1: .* expected --source.messages-key conversations\.$"):
        found.with_responses()


def test_held_out_rows_of_the_same_file(tmp_path: Path) -> None:
    rows = [{"prompt": str(number), "response": "b"} for number in range(40)]
    found = source(tmp_path, *rows, eval_fraction=0.5).with_responses()
    assert len(found.train) + len(found.held_out["held_out"]) == 40


def test_held_out_rows_need_a_label_or_a_response(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    path.write_text('{"prompt": "c", "label": "d"}\n{"prompt": "e", "response": "f"}\n')
    row = {"prompt": "a", "response": "b"}
    found = source(tmp_path, row, eval_path=str(path)).with_responses().held_out["held"]
    assert [(prompt.text, prompt.label) for prompt in found] == [("c", "d"), ("e", "f")]
    pairs = source(tmp_path, {"prompt": "a", "chosen": "b", "rejected": ""}, eval_path=str(path))
    with pytest.raises(DataError, match=r"held.jsonl, line 2: no 'chosen'"):
        pairs.with_pairs()


def test_rollouts_ignore_what_a_row_gives(tmp_path: Path) -> None:
    [prompt] = source(tmp_path, {"prompt": "a", "response": 3}).prompts().train
    assert prompt.responses == ()


@cases("files: responses")
def test_a_row_that_gives_no_response(tmp_path: Path, case: Case) -> None:
    row = case.given
    with case.refused(DataError, tmp_path):
        source(tmp_path, row).with_responses()


def test_a_row_that_gives_no_pair(tmp_path: Path) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": ""}
    for bad, said in (
        ({"prompt": "a", "chosen": "b"}, "no 'rejected'"),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "'chosen' is empty"),
    ):
        with pytest.raises(DataError, match=f"line 2: {said}"):
            source(tmp_path, good, bad).with_pairs()
