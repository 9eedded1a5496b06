"""The flags of one run, read as numbers and texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from rlcore import ConfigError, Registry
from rlcore_import.arguments import Arguments

Settings = Mapping[str, Any]
T = TypeVar("T")
UNSET = ("null",)
"""The values of a flag that is named and has none."""
TRUTHS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
"""What the frameworks take for true and false, in small letters."""


class _Reads(dict[str, tuple[str, ...]]):
    """Flags that note in `names` which of them are asked for."""

    names: set[str]

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


@dataclass(frozen=True)
class Flags:
    """The flags of one run, without their dashes. `entry`: the program, if it was named.

    `files`: what the script writes, by what stands for the path in `flags`. `variable`: the flags whose
    values have a variable, which are not among `flags`.
    """

    dashes: ClassVar[str] = "--"

    flags: Mapping[str, tuple[str, ...]]
    entry: str
    registry: Registry
    files: Mapping[str, str] = field(default_factory=dict)
    variable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Arguments, registry: Registry) -> Self:
        """The flags that `arguments` name."""
        given = {flag.removeprefix("--"): values for flag, values in arguments.flags.items()}
        variable = {name: values for name, values in given.items() if "$" in "".join(values)}
        known = {name: values for name, values in given.items() if name not in variable}
        return cls(known, arguments.entry, registry, arguments.files, variable)

    def has(self, name: str) -> bool:
        """Whether `name` is given, and not as `null`."""
        return name in self.flags and self.flags[name] != UNSET

    def text(self, name: str, default: str = "") -> str:
        """The first value of `name`."""
        return (self.flags.get(name) or (default,))[0] if self.has(name) else default

    def is_on(self, name: str, default: bool = False) -> bool:
        """Whether `name` is true, or given without a value. ConfigError for what is no truth."""
        if self.has(name) and self.flags.get(name) == ():
            return True
        return self._parsed(name, default, truth, "true or false")

    def number(self, name: str, default: int) -> int:
        """The same as an integer. ConfigError."""
        return self._parsed(name, default, int, "an integer")

    def real(self, name: str, default: float) -> float:
        """The same as a number. ConfigError."""
        return self._parsed(name, default, float, "a number")

    def holds(self, conditions: Mapping[str, Any]) -> bool:
        """Whether each property is on, off or one of a list as it must be, and each flag on or off.

        ConfigError.
        """
        for name, expected in conditions.items():
            found = getattr(self, name) if hasattr(type(self), name) else self.is_on(name)
            fits = found in expected if isinstance(expected, list) else bool(found) is expected
            if not fits:
                return False
        return True

    def doubts(self, conditions: Mapping[str, Any]) -> list[str]:
        """The values with a variable on which it depends whether the conditions hold. ConfigError."""
        reads = _Reads(self.flags)
        reads.names = set()
        replace(self, flags=reads).holds(conditions)
        return [value for name in self.variable if name in reads.names for value in self.variable[name]]

    def _parsed(self, name: str, default: T, kind: Callable[[str], T], expected: str) -> T:
        text = self.text(name, str(default))
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{self.dashes}{name}: found {text!r}, expected {expected}.") from None


def truth(text: str) -> bool:
    """What `text` says. ValueError where it says neither."""
    if text.lower() not in TRUTHS:
        raise ValueError(text)
    return TRUTHS[text.lower()]
