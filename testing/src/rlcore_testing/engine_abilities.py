"""What an engine says of itself, as its conformance suite reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pytest

from rlcore.api.part import Part
from rlcore_testing.conformance import Conformance, Subject


class Abilities(Conformance):
    """Base of the suites of an engine."""

    ways: ClassVar[Sequence[str]] = ("disk",)
    """Those of `--engine.publish` that the engine has on one host."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """It takes weights by the way that its config chooses."""
        config: Any = subject.part.config if subject.part else None
        return cls.with_values(part=subject.part, ways=(config.publish,))

    def engine(self) -> Part[Any]:
        """The engine, as a record names it."""
        return self.part

    def needs(self, ability: str) -> None:
        """Skip a test of what the engine says that it cannot do (a class variable of `rlcore.Engine`)."""
        if not getattr(self.engine().load(), ability):
            pytest.skip(f"{self.engine().name}: {ability} is False")
