"""Data sets of the hub: what a name means, and the files that it stands for."""

from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from rlcore import DataError
from rlcore_files import hub
from rlcore_files.config import FileConfig
from rlcore_files.hub import HubDataset
from rlcore_files.source import FileSource


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("openai/gsm8k", ("openai/gsm8k", "", "train")),
        ("openai/gsm8k/main", ("openai/gsm8k", "main", "train")),
        ("openai/gsm8k:test", ("openai/gsm8k", "", "test")),
        ("a-b/c.d_e/x-1:test_sft", ("a-b/c.d_e", "x-1", "test_sft")),
    ],
)
def test_a_name_says_configuration_and_split(text: str, found: tuple[str, str, str]) -> None:
    name, config, split = found
    assert HubDataset.of(text) == HubDataset(name=name, config=config, split=split)


@pytest.mark.parametrize(
    "text", ["a.jsonl", "data/a.jsonl", "/data/a", "./a/b", "hf://datasets/a/b", "gsm8k", "a/b/c/d", "here/b"]
)
def test_a_path_is_no_name(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert HubDataset.of(text) is None


@pytest.fixture
def converted() -> Any:
    """The files of a data set, laid out as the hub does, in memory; its questions are numbered."""
    system = fsspec.filesystem("memory")
    first = 0
    for path in ("main/train/0000", "main/train/0001", "main/test/0000", "socratic/train/0000"):
        rows = [{"question": str(first + at), "answer": "2"} for at in range(3)]
        with system.open(f"/hub/{path}.parquet", "wb") as file:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
        first += 3
    system.touch("/hub/.gitattributes")
    yield system
    system.rm("/hub", recursive=True)


def test_its_files_are_those_of_the_split(converted: Any) -> None:
    def files(text: str) -> list[str]:
        dataset = HubDataset.of(text)
        assert dataset is not None
        return dataset.files_in(converted, "/hub")

    assert files("a/b/main") == ["/hub/main/train/0000.parquet", "/hub/main/train/0001.parquet"]
    assert files("a/b/socratic") == ["/hub/socratic/train/0000.parquet"]
    with pytest.raises(DataError, match="configuration 'default', expected a/b/CONFIG with one of main, soc"):
        files("a/b")
    with pytest.raises(DataError, match="split 'dev', expected a/b/main:SPLIT with one of test, train"):
        files("a/b/main:dev")
    converted.rm("/hub/socratic", recursive=True)
    assert files("a/b:test") == ["/hub/main/test/0000.parquet"]


@pytest.mark.parametrize("streaming", [False, True])
def test_several_files_are_read_as_one(
    converted: Any, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "_ROOT", "memory://hub")
    monkeypatch.setattr(hub, "_SCHEME", "memory://")
    source = FileSource(FileConfig(path="a/b/main[1:]", prompt_key="question", streaming=streaming))
    train = source.prompts().train
    assert [train[at].text for at in range(len(train))] == ["1", "2", "3", "4", "5"]
    assert [train[at].text for at in (4, 0, 3)] == ["5", "1", "4"]
    assert len(source.files()) == 2


def test_without_the_hub_it_is_said_what_would_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    complaint = FileConfig.path_complaint(["openai/gsm8k/main:test"])
    assert complaint is not None
    assert (
        "hf://datasets/openai/gsm8k@refs/convert/parquet/main/test/*.parquet, but HF_HUB_OFFLINE" in complaint
    )
