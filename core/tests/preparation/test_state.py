"""The state of a run: what is damaged is refused with one sentence."""

from pathlib import Path

from refusals import Case, cases

from rlcore.api.errors import CheckpointError
from rlcore.preparation.run_state import FILE, RunState


@cases("state: a damaged state is refused by name")
def test_a_damaged_state_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    text = case.given
    (tmp_path / FILE).write_text(text)
    with case.refused(CheckpointError, tmp_path):
        RunState.read(tmp_path)
