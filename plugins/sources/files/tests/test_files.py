"""Prompt files: what is read, what is held out, and what each kind of bad row says."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from refusals import Case, cases

from rlcore.api.errors import DataError
from rlcore.rollout.reward_mix import CHOICE
from rlcore.rollout.scoring import TEACHER
from rlcore_files.config import FileConfig
from rlcore_files.source import FileSource


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **settings: Any) -> Any:
    return FileSource(FileConfig(path=str(path), **settings)).prompts()


def test_jsonl(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "p", "label": 3, "metadata": {"k": [1]}}, {"prompt": "q"}])
    first, second = read(path).train
    assert (first.prompt_id, first.text, first.label, first.metadata) == ("row-1", "p", 3, {"k": [1]})
    assert (second.prompt_id, second.label, second.metadata) == ("row-2", None, {})


def test_blank_lines_keep_the_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p"}\n\n{"prompt": "q"}\n\n')
    assert [prompt.prompt_id for prompt in read(path).train] == ["row-1", "row-3"]


@pytest.mark.parametrize("start", ["", "\n"])
def test_a_byte_order_mark_begins_a_file_and_no_line(tmp_path: Path, start: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(start + '{"prompt": "p"}\n{"prompt": "q"}\n', encoding="utf-8-sig")
    for streaming in (False, True):
        assert [prompt.text for prompt in read(path, streaming=streaming).train] == ["p", "q"]
    path.write_text('{"prompt": "p"}\n\ufeff{"prompt": "q"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 2: not JSON"):
        read(path)


def test_equal_prompts_stay_distinct(tmp_path: Path) -> None:
    prompts = read(write(tmp_path / "a.jsonl", [{"prompt": "p"}, {"prompt": "p"}])).train
    assert len({prompt.prompt_id for prompt in prompts}) == 2


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 7, "answer": "1+1=2", "question": "1+1"},
}
"""A row as verl's scripts write it (examples/data_preprocess/gsm8k.py)."""


@pytest.mark.parametrize("streaming", [False, True])
def test_a_parquet_file_of_verl(tmp_path: Path, streaming: bool) -> None:
    """Written as verl does it, by `datasets`: the answer is in a struct."""
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list(
        [VERL, {**VERL, "reward_model": {"style": "rule", "ground_truth": "3"}}]
    ).to_parquet(str(path))
    keys = {"label_key": "reward_model.ground_truth", "metadata_key": "extra_info"}
    first, second = read(path, **keys, streaming=streaming).train
    assert first.text == ({"role": "user", "content": "1+1"},)
    assert (first.label, second.label) == ("2", "3")
    assert first.metadata["data_source"] == VERL["data_source"]
    assert {key: value for key, value in first.metadata.items() if key != "data_source"} == VERL["extra_info"]


def test_a_key_with_dots_is_a_path_unless_the_row_has_it(tmp_path: Path) -> None:
    row = {"a": {"q": "inner", "l": {"x": 1}}, "a.q": "own"}
    (prompt,) = read(write(tmp_path / "a.jsonl", [row]), prompt_key="a.q", label_key="a.l.x").train
    assert (prompt.text, prompt.label) == ("own", 1)
    for key in ("label_key", "metadata_key"):
        flag = f"--source.{key.replace('_', '-')}"
        with pytest.raises(DataError, match=rf"{flag}: no row has 'a\.q\.x'; found 'a', 'a\.q'"):
            read(tmp_path / "a.jsonl", prompt_key="a.q", **{key: "a.q.x"})
    with pytest.raises(
        DataError, match=r"line 1: no 'a\.p' \(--source.prompt-key names another key\); found 'a', 'a\.q'"
    ):
        read(tmp_path / "a.jsonl", prompt_key="a.p")


def test_responses_may_be_nested_too(tmp_path: Path) -> None:
    row = {"prompt": "p", "of": {"good": "yes", "bad": ""}}
    source = FileSource(
        FileConfig(path=str(write(tmp_path / "a.jsonl", [row])), chosen_key="of.good", rejected_key="of.bad")
    )
    (prompt,) = source.with_pairs().train
    assert prompt.responses == ("yes", "")


def test_keys_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "1+1", "a": "2", "m": {"k": 1}, "level": "hard"}])
    keys = {"prompt_key": "q", "label_key": "a", "metadata_key": "m"}
    (prompt,) = read(path, **keys).train
    assert (prompt.text, prompt.label, prompt.metadata) == ("1+1", "2", {"k": 1})
    (prompt,) = read(path, **keys, columns_as_metadata=True).train
    assert prompt.metadata == {"a": "2", "k": 1, "level": "hard"}


def test_a_column_gives_no_orders(tmp_path: Path) -> None:
    columns = {CHOICE: 0.5, TEACHER: "human", "priority": "high", "seed": "x", "level": 1}
    path = write(tmp_path / "a.jsonl", [{"prompt": "p", **columns, "metadata": {"seed": 3}}])
    (prompt,) = read(path, columns_as_metadata=True).train
    assert prompt.metadata == {"level": 1, "seed": 3}


def test_a_parquet_column_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    inner = {"at": datetime(2026, 1, 1)}
    pq.write_table(pa.table({"prompt": ["p"], "made": [[inner]], "raw": [b"x"]}), path)
    assert read(path).train[0].metadata == {}
    for settings, found in (
        ({"columns_as_metadata": True}, "'made' is no JSON .*datetime"),
        ({"label_key": "raw"}, "'raw' is no JSON .*bytes"),
    ):
        with pytest.raises(DataError, match=rf"a\.parquet, row 1: {found}.*; write it as text or numbers"):
            read(path, **settings)


def test_chat_template_makes_text_a_user_message(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = write(tmp_path / "a.jsonl", [{"prompt": "hi"}, {"prompt": chat}])
    first, second = read(path, chat_template=True).train
    assert list(first.text) == [{"role": "user", "content": "hi"}]
    assert list(second.text) == chat


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    chat = [{"role": "user", "content": "u", "name": None}, {"role": "user", "content": "v", "name": "n"}]
    pq.write_table(pa.table({"prompt": [chat, chat], "label": ["x", None]}), path)
    first, second = read(path).train
    assert list(first.text) == [
        {"role": "user", "content": "u"},
        {"role": "user", "content": "v", "name": "n"},
    ]
    assert (first.label, second.label) == ("x", None)


@cases("files: malformed line names file line and reason")
def test_malformed_line_names_file_line_and_reason(tmp_path: Path, case: Case) -> None:
    line = case.given
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "p"}\n' + line + "\n")
    with case.refused(DataError, tmp_path):
        read(path)
    assert str(path) not in {file.path for file in psutil.Process().open_files()}


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match="line 1: not UTF-8 at byte 12"):
        read(path)


def test_parquet_beside_a_numpy_that_pyarrow_is_not_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["a"], "label": ["b"]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as importing it fails
    with pytest.raises(DataError, match=r"a\.parquet: needs a pyarrow that works \("):
        read(path)


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 this is none")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as parquet"):
        read(path)
    pq.write_table(pa.table({"prompt": ["p", None]}), path)
    with pytest.raises(DataError, match="row 2: 'prompt' is null"):
        read(path)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="found a folder"):
        read(tmp_path)
    with pytest.raises(DataError, match="the file holds no prompts"):
        read(write(tmp_path / "empty.jsonl", []))
    with pytest.raises(DataError, match=r"ends in \.jsonl or \.parquet"):
        read(write(tmp_path / "a.csv", []))


def test_hash_split_never_shares_a_text(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{number % 100}"} for number in range(300)]
    path = write(tmp_path / "a.jsonl", rows)
    found = read(path, eval_fraction=0.3)
    train = {prompt.text for prompt in found.train}
    held_out = {prompt.text for prompt in found.held_out["held_out"]}
    assert train
    assert held_out
    assert not train & held_out
    assert len(found.train) + len(found.held_out["held_out"]) == 300
    assert read(path, eval_fraction=0.3) == found
    # A text stays on its side when the file changes around it.
    other = read(write(tmp_path / "b.jsonl", rows[50:100]), eval_fraction=0.3)
    assert {prompt.text for prompt in other.held_out["held_out"]} <= held_out


def test_hash_split_without_a_held_out_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "p"}])
    with pytest.raises(DataError, match="both must have some"):
        read(path, eval_fraction=0.5)


def test_eval_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "p"}])
    held_out = write(tmp_path / "test.jsonl", [{"prompt": "q"}])
    found = read(path, eval_path=str(held_out))
    assert [prompt.prompt_id for prompt in found.held_out["test"]] == ["eval-1"]
    with pytest.raises(DataError, match=r"1 held-out prompts are also in .* eval-2 \(there row-1\)"):
        read(path, eval_path=str(write(held_out, [{"prompt": "q"}, {"prompt": "p"}])))


def test_two_ways_to_hold_out_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        FileConfig(path="a.jsonl", eval_path="b.jsonl", eval_fraction=0.1)


def test_the_columns_of_the_data_are_told_for_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "p", "answer": 3}])
    assert read(path).columns == ("prompt", "answer")
