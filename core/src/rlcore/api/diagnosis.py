"""What `rlcore doctor` says of one thing that a run needs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`what` was looked at, and what was `found`. `remedy`: what to do, in a sentence; empty: it is fine.

    `stops`: without the remedy, what is asked for cannot work; else it works, but not well.
    """

    what: str
    found: str
    remedy: str = ""
    stops: bool = True
