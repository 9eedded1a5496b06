"""The summary at the end of a run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Summary:
    """The summary of a run. `eval`: the score of each evaluated set.

    `exit_reason`: "completed", "sigterm", "interrupted", "terminated" or "failed"; or "NAME: why", if the
    callback NAME has ended the run.
    """

    run: str
    steps: int
    seconds: float
    eval: Mapping[str, float]
    exit_reason: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))
