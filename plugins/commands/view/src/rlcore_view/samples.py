"""`samples/`: the saved samples of a run, file by file."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rlcore import Json, parse_json
from rlcore_view.metrics import rounded

MOST_ROWS = 2000
"""Samples of a file that are listed."""
SHOWN = 300
"""Characters of a text in the list."""
BINS = 21
MOST_FILES = 40
"""Files of a kind whose samples are counted."""
_SPREAD = ("reward", "tokens")
_FILE = re.compile(r"(eval|rollout)-(\d+)\.jsonl")


class Samples:
    """The files of the folder at `path`. A file is written whole, so what was read of it stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lists: dict[str, tuple[int, Json, list[int]]] = {}
        self._spreads: dict[str, tuple[int, list[tuple[Json, ...]]]] = {}

    def files(self) -> list[dict[str, Json]]:
        """Name, kind and step of each, the first step first."""
        names = [path.name for path in self._path.iterdir()] if self._path.is_dir() else []
        matches = [match.groups() for name in names if (match := _FILE.fullmatch(name))]
        rows = [{"name": f"{kind}-{step}", "kind": kind, "step": int(step)} for kind, step in matches]
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

    def spread(self) -> Json:
        """How rewards and lengths are spread over the steps, of each kind of file.

        `files` and their `steps`; `reward` and `tokens`: the `middle` of each bin, and for each file the
        `shares` of its samples in the bins and their `mean`. A long run gives some of its files.
        """
        found = {}
        for kind in ("rollout", "eval"):
            files = [file for file in self.files() if file["kind"] == kind]
            files = files[:: -(-len(files) // MOST_FILES) or 1]
            rows = [self._values(str(file["name"])) for file in files]
            values = {name: [[row[i] for row in some] for some in rows] for i, name in enumerate(_SPREAD)}
            found[kind] = {
                "files": [file["name"] for file in files],
                "steps": [file["step"] for file in files],
                **{name: binned([_finite(some) for some in of]) for name, of in values.items()},
            }
        return found

    def _values(self, name: str) -> list[tuple[Json, ...]]:
        """What `spread` counts of each sample of a file. Nothing else of it is kept."""
        path = self._file(name)
        written = path.stat().st_mtime_ns
        if self._spreads.get(name, (0,))[0] != written:
            rows: list[tuple[Json, ...]] = []
            with path.open("rb") as file:
                for line in file:
                    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                        sample = parse_json(line)
                        rows.append((sample["score"], sample["tokens"]))
            self._spreads[name] = (written, rows)
        return self._spreads[name][1]

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


def binned(values: Sequence[Sequence[float]]) -> Json:
    """The values of several files in bins of one width, from the least value to the greatest: `BINS`, or one
    for each of fewer whole numbers.
    """
    every = [value for some in values for value in some]
    low, high = min(every, default=0.0), max(every, default=0.0)
    is_whole = all(value == round(value) for value in every)
    count = min(BINS, round(high - low) + 1) if is_whole else BINS
    width = (high - low) / max(count - 1, 1) or 1.0  # the least and the greatest are the middles of theirs
    counts = [Counter(round((value - low) / width) for value in some) for some in values]
    bins = range(count if high > low else 1)
    return {
        "middle": [rounded(low + i * width) for i in bins],
        "shares": [[rounded(of[i] / max(of.total(), 1)) for i in bins] for of in counts],
        "mean": [rounded(fmean(some)) if some else None for some in values],
    }


def _finite(values: Sequence[Json]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


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
    values = (trajectory.get("extras") or {}).get("advantages") or ()
    numbers = [value for value in values if isinstance(value, int | float)]
    text, response = prompt_text(sample["prompt"]), sample["response"]
    return {
        "row": number,
        "set": sample["set"],
        "prompt_id": sample["prompt_id"],
        "prompt": text if len(text) <= SHOWN else f"…{text[-SHOWN:]}",
        "response": response if len(response) <= SHOWN else f"{response[:SHOWN]}…",
        "label": sample.get("label"),
        "tokens": sample["tokens"],
        "status": sample["status"],
        "reward_status": sample["reward_status"],
        "score": sample["score"],
        "group": trajectory.get("group_id"),
        "index": trajectory.get("index"),
        "advantage": sum(numbers) / len(numbers) if numbers else None,
        "has_tokens": "response_ids" in trajectory,
    }


def prompt_text(prompt: Json) -> str:
    """A prompt as text: of a chat its last message."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1] if isinstance(prompt, list) and prompt else {}
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) else str(prompt)
