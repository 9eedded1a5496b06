"""What the suites share, and how one runs without pytest.

    class TestMyFilter(FilterConformance):
        part = Part(name="mine", factory="my_package.filters:Mine", config=MyConfig())

A suite is a plain class: each method `test_…` is a property, and its docstring says why it matters. pytest
collects a subclass that is called `Test…`; `rlcore plugins check` makes one of an installed part, and runs it
by `findings`.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self
from unittest import SkipTest

from rlcore.api.errors import MissingEngineError, MissingPackageError, UserError
from rlcore.api.part import Part
from rlcore.api.types import Prompt
from rlcore.plugins.registry import Registry

PREFIX = "test_"


class NotBuiltError(UserError):
    """The part cannot be made here. The message is the part's own, and says what its user can do."""


NOT_INSTALLED = (MissingEngineError, MissingPackageError, NotBuiltError)
"""Without these a part fails in every property, so that no property is asked."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What an installed plugin offers, and is to be checked.

    `record`: what its hook yields. `part`: with its settings; None of a recipe or a command. `prompts`: what
    to ask of, and judge by, a part that answers or judges; empty: the suite has its own. `bridge`: of Qwen3,
    for a trainer that needs one. `registry`: the parts beside it. `context`: what a command finds in its
    context (`click.pass_obj`).
    """

    record: Any
    part: Part[Any] | None = None
    prompts: tuple[Prompt, ...] = ()
    bridge: Part[Any] | None = None
    registry: Registry | None = None
    context: Any = None


class Conformance:
    """Base of the suites: subclass the one of a kind as `Test…`, and give `part`."""

    part: ClassVar[Part[Any]]
    """The part that is checked, as a record names it."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """The suite of an installed part, of which only its record and its config are known."""
        return cls.with_values(part=subject.part)

    @classmethod
    def teardown_class(cls) -> None:
        """Called once, after all properties: ends what they share. pytest does so by this name."""

    @classmethod
    def with_values(cls, **values: Any) -> type[Self]:
        """A subclass with these class variables."""
        return type(cls.__name__, (cls,), {"__module__": cls.__module__, **values})


class Outcome(StrEnum):
    """How a property fared. `SKIPPED`: it cannot be asked of this part."""

    HOLDS = "ok"
    FAILS = "fails"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One property of a suite. `reason`: why it fails, or why it was not asked.

    `meaning`: what the docstring of its test says of it; empty: the name says it all.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    meaning: str = ""


def properties(suite: type[Conformance]) -> list[str]:
    """The names of its tests, in the order in which they stand; those of its bases first."""
    names = (name for base in reversed(suite.__mro__) for name in vars(base) if name.startswith(PREFIX))
    return list(dict.fromkeys(names))


def said(name: str) -> str:
    """A property in words, by the name of its test."""
    return name.removeprefix(PREFIX).replace("_", " ")


def meaning(suite: type[Conformance], name: str) -> str:
    """The first paragraph of its docstring, on one line."""
    return " ".join((inspect.getdoc(getattr(suite, name)) or "").partition("\n\n")[0].split())


def findings(suite: type[Conformance]) -> Iterator[Finding]:
    """Asks each property, each of a new instance. Raises `NOT_INSTALLED` where the part needs a package."""
    try:
        for name in properties(suite):
            outcome, reason = _asked(suite(), name)
            yield Finding(name=said(name), outcome=outcome, reason=reason, meaning=meaning(suite, name))
    finally:
        suite.teardown_class()


def _asked(suite: Conformance, name: str) -> tuple[Outcome, str]:
    """How one property fared, and why."""
    try:
        getattr(suite, name)()
    except SkipTest as skipped:
        return Outcome.SKIPPED, str(skipped)
    except NOT_INSTALLED:
        raise
    except Exception as error:
        return Outcome.FAILS, why(error)
    return Outcome.HOLDS, ""


def why(error: Exception) -> str:
    """The first paragraph of what an error says, on one line; of a bare `assert`, what it asserts."""
    text = " ".join(str(error).strip().partition("\n\n")[0].split())
    if isinstance(error, AssertionError):
        return text or str(traceback.extract_tb(error.__traceback__)[-1].line)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({last.filename}, line {last.lineno})"


def needs_pytest(suite: type[Conformance]) -> bool:
    """Whether one of its tests has parameters, which are fixtures of pytest."""
    return any(len(inspect.signature(getattr(suite, name)).parameters) > 1 for name in properties(suite))


def same(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Fails at the first place where the two differ, and says `what` they are of."""
    assert len(found) == len(expected), f"{what}: {len(found)} of {len(expected)}"
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, f"{what}: number {place} {_differing(one, other)}"


def _differing(one: Any, other: Any) -> str:
    """The fields in which two records differ: the whole of a sample takes many lines."""
    if not (is_dataclass(one) and type(one) is type(other)):
        return f"is {one!r}, was {other!r}"
    pairs = [(field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    told = "; ".join(f"has {name} {new!r}, had {old!r}" for name, new, old in pairs if new != old)
    return told or f"is {one!r}, was {other!r}"  # its own `__eq__` looks at something else
