"""The flags of one run, read as numbers and texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from rlcore import ConfigError, Registry

Settings = Mapping[str, Any]
T = TypeVar("T")
UNSET = ("null",)
"""The values of a flag that is named and has none."""


@dataclass(frozen=True)
class Flags:
    """The flags of one run, without their dashes. `entry`: the program, if it was named.

    `files`: what the script writes, by what stands for the path in `flags`.
    """

    dashes: ClassVar[str] = "--"

    flags: Mapping[str, tuple[str, ...]]
    entry: str
    registry: Registry
    files: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether `name` is given, and not as `null`."""
        return name in self.flags and self.flags[name] != UNSET

    def text(self, name: str, default: str = "") -> str:
        """The first value of `name`."""
        return (self.flags.get(name) or (default,))[0] if self.has(name) else default

    def is_on(self, name: str, default: bool = False) -> bool:
        """Whether `name` is true, or given without a value."""
        return self.flags.get(name) == () or self.text(name, str(default)).lower() == "true"

    def number(self, name: str, default: int) -> int:
        """The same as an integer. ConfigError."""
        return self._parsed(name, default, int, "an integer")

    def real(self, name: str, default: float) -> float:
        """The same as a number. ConfigError."""
        return self._parsed(name, default, float, "a number")

    def holds(self, conditions: Mapping[str, Any]) -> bool:
        """Whether each property is on, off or one of a list as it must be, and each flag on or off."""
        for name, expected in conditions.items():
            is_flag = not hasattr(type(self), name)
            is_on = self.has(name) and self.text(name, "true").lower() != "false"
            found = is_on if is_flag else getattr(self, name)
            fits = found in expected if isinstance(expected, list) else bool(found) is expected
            if not fits:
                return False
        return True

    def _parsed(self, name: str, default: T, kind: Callable[[str], T], expected: str) -> T:
        text = self.text(name, str(default))
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{self.dashes}{name}: found {text!r}, expected {expected}.") from None
