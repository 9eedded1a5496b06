"""The frameworks whose runs are read: each is a reader, a table and a way from the one to the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore import Registry
    from rlcore_import.arguments import Arguments
    from rlcore_import.table import Table
    from rlcore_import.translation import Translation


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One of them. `name`: as its own people write it. `prefix`: what a flag of it begins with.

    `read` takes the words of the command line, and variables of a script.
    """

    name: str
    prefix: str
    table: Callable[[], Table]
    read: Callable[[tuple[str, ...], Mapping[str, str]], Arguments]
    translate: Callable[[Arguments, Registry], Translation[Any]]


def slime() -> Framework:
    from rlcore_import.arguments import of_script_or_words
    from rlcore_import.slime.translate import table, translate

    return Framework(name="slime", prefix="--", table=table, read=of_script_or_words, translate=translate)


def verl() -> Framework:
    from rlcore_import.verl.overrides import read
    from rlcore_import.verl.translate import table, translate

    return Framework(name="verl", prefix="", table=table, read=read, translate=translate)


def trl() -> Framework:
    from rlcore_import.trl.program import read
    from rlcore_import.trl.translate import table, translate

    return Framework(name="TRL", prefix="--", table=table, read=read, translate=translate)


FRAMEWORKS: Mapping[str, Callable[[], Framework]] = {"slime": slime, "verl": verl, "trl": trl}
"""Command → the framework, which is imported when it is asked for."""
