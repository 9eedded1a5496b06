"""`metrics.jsonl`: one flat JSON object a step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from rlcore.api.errors import CheckpointError
from rlcore.api.types import Json
from rlcore.disk import disk_sentence, replace_file

Row = dict[str, Json]
"""The metrics of one step: `step`, `weight_version`, and names with a slash."""


class MetricsFile:
    """Appends rows to `path`, each by one write, so that a reader never sees half a row.

    Rows after `keep_step` are removed, because a resumed run repeats their steps. Errors of the file system
    become a CheckpointError.
    """

    def __init__(self, path: Path, *, keep_step: int) -> None:
        self._path = path
        if path.exists():
            write_lines(path, [row for row in read_metrics(path) if row["step"] <= keep_step])
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise CheckpointError(disk_sentence(path, error)) from error

    def write(self, row: Mapping[str, Json]) -> None:
        """Append one step. A number that is not finite becomes null: JSON has none."""
        data = _line(row).encode()
        try:
            while data:  # a full disk may take a part, and refuse the rest with the reason
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise CheckpointError(disk_sentence(self._path, error)) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_metrics(path: Path) -> list[Row]:
    """The rows of the file, without a last line that a crash has cut short."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def write_lines(path: Path, rows: list[Row]) -> None:
    """Write a JSON-lines file, whole or not at all. Errors of the file system become a CheckpointError."""
    with replace_file(path) as draft:
        draft.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: Mapping[str, Json]) -> str:
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n"
