"""`samples/`: the saved samples of a run, file by file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore import Json, parse_json

MOST_ROWS = 2000
"""Samples of a file that are listed."""
SHOWN = 300
"""Characters of a text in the list."""
_FILE = re.compile(r"(eval|rollout)-(\d+)\.jsonl")


class Samples:
    """The files of the folder at `path`. A file is written whole, so what was read of it stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lists: dict[str, tuple[int, Json, list[int]]] = {}

    def files(self) -> list[dict[str, Json]]:
        """Name, kind and step of each, the first step first."""
        names = [path.name for path in self._path.iterdir()] if self._path.is_dir() else []
        matches = [match for name in names if (match := _FILE.fullmatch(name))]
        rows = [
            {"name": match[0].removesuffix(".jsonl"), "kind": match[1], "step": int(match[2])}
            for match in matches
        ]
        return sorted(rows, key=lambda row: (row["step"], row["kind"]))

    def rows(self, name: str) -> Json:
        """A line of each sample: what can be listed and sorted. KeyError: there is no such file."""
        return self._index(name)[1]

    def sample(self, name: str, number: int) -> Json:
        """The whole sample of a line. KeyError."""
        _, _, offsets = self._index(name)
        if not 0 <= number < len(offsets):
            raise KeyError(f"{name}/{number}")
        with self._file(name).open("rb") as file:
            file.seek(offsets[number])
            return parse_json(file.readline())

    def _file(self, name: str) -> Path:
        if not _FILE.fullmatch(f"{name}.jsonl"):  # a name, never a path
            raise KeyError(name)
        return self._path / f"{name}.jsonl"

    def _index(self, name: str) -> tuple[int, Json, list[int]]:
        """When the file was written, its list, and where each sample begins."""
        path = self._file(name)
        try:
            written = path.stat().st_mtime_ns
        except OSError:
            raise KeyError(name) from None
        if self._lists.get(name, (0,))[0] != written:
            self._lists[name] = (written, *_read(path))
        return self._lists[name]


def _read(path: Path) -> tuple[Json, list[int]]:
    rows: list[Json] = []
    offsets: list[int] = []
    broken = count = offset = 0
    with path.open("rb") as file:
        for line in file:
            try:
                sample = parse_json(line)
                row = _listed(sample, len(offsets))
            except (AttributeError, KeyError, TypeError, ValueError):
                broken += 1
            else:
                count += 1
                if len(rows) < MOST_ROWS:
                    rows.append(row)
                    offsets.append(offset)
            offset += len(line)
    return {"rows": rows, "count": count, "broken": broken}, offsets


def _listed(sample: Mapping[str, Any], number: int) -> Json:
    trajectory = sample.get("trajectory") or {}
    mean = _mean((trajectory.get("extras") or {}).get("advantages"))
    return {
        "row": number,
        "set": sample["set"],
        "prompt_id": sample["prompt_id"],
        "prompt": _end(prompt_text(sample["prompt"])),
        "response": _begin(sample["response"]),
        "label": sample.get("label"),
        "tokens": sample["tokens"],
        "status": sample["status"],
        "reward_status": sample["reward_status"],
        "score": sample["score"],
        "group": trajectory.get("group_id"),
        "index": trajectory.get("index"),
        "advantage": mean,
        "has_tokens": "response_ids" in trajectory,
    }


def _begin(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _end(text: str) -> str:
    return text if len(text) <= SHOWN else f"…{text[-SHOWN:]}"


def prompt_text(prompt: Json) -> str:
    """A prompt as text: of a chat its last message."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1] if isinstance(prompt, list) and prompt else {}
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) else str(prompt)


def _mean(values: Json) -> float | None:
    numbers = [value for value in values or () if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None
