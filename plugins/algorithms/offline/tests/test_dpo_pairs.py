"""`rlcore pairs`: which responses become a pair, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Program


def sample(prompt: str, response: str, score: float | None, status: str = "completed") -> dict[str, Any]:
    known = {"prompt_id": f"id-{prompt}", "prompt": prompt, "label": "l", "set": "rollout"}
    return {**known, "response": response, "score": score, "status": status}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_best_and_the_worst_finished_response(tmp_path: Path, program: Program) -> None:
    first = write(
        tmp_path / "rollout-1.jsonl",
        *(
            sample("a", "good", 0.9),
            sample("a", "bad", 0.1),
            sample("a", "better, but cut", 1.0, "truncated"),
        ),
        *(sample("b", "same", 0.5), sample("b", "same too", 0.5), sample("c", "late", 0.2)),
        sample("d", "unscored", None),
    )
    second = write(tmp_path / "rollout-2.jsonl", sample("c", "early", 0.3), sample("d", "alone", 1.0))
    out = tmp_path / "pairs.jsonl"
    program("pairs", str(first), str(second), "--out", str(out))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert found == [
        {"prompt": "a", "chosen": "good", "rejected": "bad", "label": "l"},
        {"prompt": "c", "chosen": "early", "rejected": "late", "label": "l"},
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "not the samples of a run"),
        ("[" * 10**5, "not the samples of a run (nested too deeply"),
        ("[1]", "not the samples of a run"),
        ('{"prompt": "a"}', "line 1: expected a sample as a run saves it"),
        (json.dumps(sample("a", "alone", 1.0)), "no prompt has two finished responses of different scores"),
    ],
)
def test_what_gives_no_pair(tmp_path: Path, program: Program, text: str | None, said: str) -> None:
    path, out = tmp_path / "rollout-1.jsonl", tmp_path / "pairs.jsonl"
    if text is not None:
        path.write_text(text)
    line = program.refused("pairs", str(path), "--out", str(out))
    assert line.startswith(str(path))
    assert said in line
    assert not out.exists()


def test_nothing_is_overwritten(tmp_path: Path, program: Program) -> None:
    path = write(tmp_path / "rollout-1.jsonl", sample("a", "good", 0.9), sample("a", "bad", 0.1))
    assert "exists already" in program.refused("pairs", str(path), "--out", str(path))
