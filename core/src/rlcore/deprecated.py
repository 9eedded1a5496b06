"""Public names that the next minor release leaves out. Until then each works, and says what to use."""

import warnings

DEPRECATED: dict[str, str] = {}
"""Public name → what to use instead, such as `rlcore.Sample`. The name stays in `__init__.pyi` meanwhile."""


def warn_of(name: str) -> None:
    """A DeprecationWarning of one of `DEPRECATED`, at the line that asked rlcore for it."""
    warnings.warn(
        f"rlcore.{name} is deprecated, and the next minor release has no such name: use {DEPRECATED[name]}.",
        DeprecationWarning,
        stacklevel=3,
    )
