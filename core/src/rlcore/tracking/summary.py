"""What a run says of itself at its end."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Summary:
    """`eval`: the score of each set that was evaluated.

    `exit_reason`: "completed", "sigterm", "interrupted", "terminated" or "failed"; of a run that the callback
    NAME ended, "NAME: why".
    """

    run: str
    steps: int
    seconds: float
    eval: Mapping[str, float]
    exit_reason: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))
