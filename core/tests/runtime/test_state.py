"""The state of a run: what is damaged is refused with one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.api.errors import CheckpointError
from rlcore.runtime.state import FILE, RunState


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a run state"),
        ("null", "not a run state"),
        (
            '{"step": "x", "version": 1, "producer": {}, "model": {}}',
            "not a run state .step: Input should be",
        ),
        ('{"steps": 1}', "not a run state .step: Field required"),
        ('{"step": 1, "version": 1, "producer": {}, "model": {}, "x": 1}', "not a run state .x: Unexpected"),
        ('{"format": 1, "versions": {}}', "format 1, .* reads format 3; resume the run with"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_a_damaged_state_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=f"{FILE}: .*{reason}"):
        RunState.read(tmp_path)
