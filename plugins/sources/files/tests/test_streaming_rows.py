"""Slices, mixes, URLs and files that stay on disk: the same prompts as from memory, and the same errors."""

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import Case, cases

from rlcore import DataError, Prompts, SourceMix
from rlcore.data.cursors import PromptCursor
from rlcore_files.config import FileConfig
from rlcore_files.lazy import LazyPrompts
from rlcore_files.source import FileSource

ROWS = [{"prompt": f"q{number}", "label": number} for number in range(60)]


@pytest.fixture(params=["jsonl", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return write(tmp_path / f"a.{request.param}")


def write(path: Path, rows: list[Any] = ROWS) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=16)
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return str(path)


def read(path: str | tuple[str, ...], **settings: Any) -> Prompts:
    return FileSource(FileConfig(path=path, **settings)).prompts()


@pytest.mark.parametrize("settings", [{}, {"eval_fraction": 0.3}])
def test_a_streamed_file_holds_the_same_prompts(path: str, settings: dict[str, Any]) -> None:
    whole, streamed = read(path, **settings), read(path, streaming=True, **settings)
    assert isinstance(streamed.train, LazyPrompts)
    assert list(streamed.train) == list(whole.train)
    assert {name: list(rows) for name, rows in streamed.held_out.items()} == dict(whole.held_out)
    assert list(streamed.train[3:20:4]) == list(whole.train[3:20:4])
    assert streamed.train[-1] == whole.train[-1]


def test_a_streamed_jsonl_is_dealt_in_the_same_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    whole, streamed = PromptCursor(read(path).train, 0), PromptCursor(read(path, streaming=True).train, 0)
    assert whole.take(150) == streamed.take(150)


def test_a_streamed_parquet_is_dealt_by_row_group(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.parquet"), streaming=True).train
    assert isinstance(found, LazyPrompts)
    assert found.blocks == [16, 16, 16, 12]
    taken = [int(prompt.label) // 16 for prompt, _ in PromptCursor(found, 0).take(60)]
    assert sum(a != b for a, b in pairwise(taken)) == 3
    held = read(write(tmp_path / "a.parquet"), streaming=True, eval_fraction=0.5).train
    assert isinstance(held, LazyPrompts)
    assert sum(held.blocks) == len(held) < 60


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("rows", "labels"),
    [("[:3]", [0, 1, 2]), ("[57:]", [57, 58, 59]), ("[-2:]", [58, 59]), ("[0:9:4]", [0, 4, 8])],
)
def test_slices(path: str, rows: str, labels: list[int], streaming: bool) -> None:
    found = read(path + rows, streaming=streaming).train
    assert [prompt.label for prompt in found] == labels
    assert found[0].prompt_id == read(path).train[labels[0]].prompt_id


def test_behind_a_slice_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p"}\nno JSON\n')
    assert len(read(f"{path}[:1]").train) == 1
    with pytest.raises(DataError, match="line 2: not JSON"):
        read(f"{path}[-1:]")


@pytest.mark.parametrize("streaming", [True, False])
def test_a_malformed_row_is_found_at_once(tmp_path: Path, streaming: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p"}\n\n{"text": "p"}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 3: no 'prompt'"):
        read(str(path), streaming=streaming)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_mix_names_its_prompts(tmp_path: Path, streaming: bool) -> None:
    a, b = write(tmp_path / "a.jsonl"), write(tmp_path / "b.parquet")
    found = read((f"x={a}[:40]:3", f"y={b}"), streaming=streaming, eval_fraction=0.2)
    assert isinstance(found.train, SourceMix)
    assert [(one.name, one.weight) for one in found.train.portions] == [("x", 3), ("y", 1)]
    assert set(found.held_out) == {"x", "y"}
    ids = [prompt.prompt_id for prompt in [*found.train, *found.held_out["x"], *found.held_out["y"]]]
    assert len(ids) == len(set(ids)) == 100
    assert {prompt_id.partition("/")[0] for prompt_id in ids} == {"x", "y"}
    assert found.train[len(found.train) - 1] == found.train[-1] == found.train[-3:][-1]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_held_out_prompt_in_the_training_set_is_refused(tmp_path: Path, streaming: bool) -> None:
    train, held = write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", ROWS[7:9])
    with pytest.raises(DataError, match=r"2 held-out prompts are also in .*first is eval-1 \(there row-15\)"):
        read(train, eval_path=held, streaming=streaming)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_urls(tmp_path: Path, kind: str, streaming: bool) -> None:
    source = write(tmp_path / f"a.{kind}")
    url = f"memory://rlcore-test/a.{kind}"
    with fsspec.open(url, "wb") as file:
        file.write(Path(source).read_bytes())
    for location in (url, f"file://{source}"):
        assert list(read(f"{location}[:7]", streaming=streaming).train) == list(read(source).train[:7])


@cases("streaming rows: urls that lead nowhere")
def test_urls_that_lead_nowhere(case: Case) -> None:
    url = case.given
    with case.refused(DataError):
        read(url)


def test_a_streamed_file_takes_little_memory(tmp_path: Path) -> None:
    """5 MB of prompts; the index has 16 bytes a row, and nothing of a row is kept."""
    path = write(tmp_path / "a.jsonl", [{"prompt": f"{number} " + "x" * 1000} for number in range(5000)])
    tracemalloc.start()
    found = read(path, streaming=True)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.train) == 5000
    assert kept < 500_000
    assert peak < 1_500_000
