"""`[NAME=]PATH[ROWS][:WEIGHT]`: read, written back, refused."""

from pathlib import Path

import pytest

from rlcore.api.errors import ConfigError
from rlcore.data.config import FileConfig
from rlcore.data.locations import Location, check_locations, parse_all


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.jsonl", "found 'nowhere.jsonl', which is no file"),
        ("a.jsonl:0.5", "a weight needs a name"),
        ("a=b.jsonl:0", "must be above 0"),
        (["a.jsonl", "b=b.jsonl"], "need a name each"),
        (["b=a.jsonl", "b=b.jsonl"], "need a name each"),
        (3, "expected a path"),
        ([], "expected a path"),
    ],
)
def test_refused_in_one_sentence(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_locations(given, "--data")
    assert str(caught.value).startswith("--data: ")
    assert said in str(caught.value)


def test_a_url_is_asked_later() -> None:
    check_locations("s3://bucket/a.jsonl", "--data")


def test_a_config_finds_its_files_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = FileConfig(path=("a=x.jsonl[:5]:2", "b=s3://bucket/y.jsonl"), eval_path="z.jsonl[3:]")
    assert config.path == (f"a={tmp_path}/x.jsonl[:5]:2", "b=s3://bucket/y.jsonl")
    assert config.eval_path == f"{tmp_path}/z.jsonl[3:]"
    assert parse_all(config.path) == config.locations
