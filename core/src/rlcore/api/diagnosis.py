"""One line of `rlcore doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`what` was looked at, and what was `found`. `remedy`: what to do, in a sentence; empty: all is well.

    `stops`: True: nothing works without the remedy; False: it works, but not well.
    """

    what: str
    found: str
    remedy: str = ""
    stops: bool = True
