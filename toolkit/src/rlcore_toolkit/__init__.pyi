"""What the toolkit offers: every name, and where it is defined."""

from .trajectory import (
    Trajectory as Trajectory,
    answered as answered,
    turn_seed as turn_seed,
)

__all__: list[str]
