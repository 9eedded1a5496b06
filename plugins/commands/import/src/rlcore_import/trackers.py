"""Where the metrics of a run go."""

from collections.abc import Iterable

from rlcore_import.run import Settings
from rlcore_import.translation import Outcome, implied, impossible, translated

TRACKERS = ("wandb", "tensorboard", "mlflow")
"""Those that rlcore has by the same name."""


def trackers(names: Iterable[str], otherwise: str) -> Outcome | Settings:
    """The trackers of `names`; `otherwise`: what is said where there are none."""
    asked = list(names)
    ours = [name for name in asked if name in TRACKERS]
    missing = ", ".join(name for name in asked if name not in TRACKERS)
    if ours:
        return translated({"tracker": ours}, f"without {missing}" if missing else "")
    return impossible(f"{missing}: write a --tracker (docs/trackers.md)") if missing else implied(otherwise)
