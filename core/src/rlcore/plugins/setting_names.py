"""The names of the run's settings, by which records are checked without an import of pydantic."""

from pathlib import Path

_NUMBERS, _OTHERS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n")

NUMBERS = frozenset(_NUMBERS.split())
"""The settings that are floats: a recipe may scale them."""

SETTINGS = NUMBERS | frozenset(_OTHERS.split())
"""All settings, by the names of `fields_of(RunConfig)`."""
