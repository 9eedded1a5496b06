"""`[NAME=]PATH[ROWS][:WEIGHT]`: read, written back, refused."""

from pathlib import Path

import pytest
from refusals import Case, cases

from rlcore_files.config import FileConfig
from rlcore_files.locations import Location, parse_all


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.jsonl", Location(path="a.jsonl")),
        ("a.jsonl[:1000]", Location(path="a.jsonl", rows=(None, 1000, None))),
        ("a.jsonl[-5::2]", Location(path="a.jsonl", rows=(-5, None, 2))),
        ("math=a.jsonl:0.7", Location(path="a.jsonl", name="math", weight=0.7)),
        (
            "code=s3://bucket/b.parquet[10:]:3",
            Location(path="s3://bucket/b.parquet", name="code", rows=(10, None, None), weight=3),
        ),
        ("memory://x/y.jsonl", Location(path="memory://x/y.jsonl")),
        ("openai/gsm8k", Location(path="openai/gsm8k")),
        (
            "math=openai/gsm8k/main:train[:100]:0.5",
            Location(path="openai/gsm8k/main:train", name="math", rows=(None, 100, None), weight=0.5),
        ),
    ],
)
def test_what_a_text_says(text: str, expected: Location) -> None:
    assert Location.parse(text) == expected
    assert str(expected) == text
    assert Location.parse(str(expected.absolute())).absolute() == expected.absolute()


def test_a_file_of_an_odd_name_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "x=y"
    path.mkdir()
    (path / "a.jsonl").touch()
    text = str(path / "a.jsonl")
    assert Location.parse(text) == Location(path=text)


@cases("files: locations")
def test_refused_in_one_sentence(case: Case) -> None:
    complaint = FileConfig.path_complaint(case.given)
    assert complaint is not None
    case.check(complaint)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["/"], "found '/', which is a folder, expected a file."),
        ([__file__], "test_locations.py', expected a name that ends in .jsonl or .parquet."),
        ([], "expected a path"),
    ],
)
def test_what_is_no_data(given: list[str], said: str) -> None:
    assert said in str(FileConfig.path_complaint(given))


def test_a_url_is_asked_later() -> None:
    assert FileConfig.path_complaint(["s3://bucket/a.jsonl"]) is None


def test_a_config_finds_its_files_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = FileConfig(path=("a=x.jsonl[:5]:2", "b=s3://bucket/y.jsonl"), eval_path="z.jsonl[3:]")
    assert config.path == (f"a={tmp_path}/x.jsonl[:5]:2", "b=s3://bucket/y.jsonl")
    assert config.eval_path == f"{tmp_path}/z.jsonl[3:]"
    assert parse_all(config.path) == config.locations
