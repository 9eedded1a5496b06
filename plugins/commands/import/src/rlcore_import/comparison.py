"""The settings of prime-rl beside rlcore's, for the pages of the documentation and for hints.

The files in `settings/` hold one table for each topic. A row has up to three cells of Markdown, as the page
shows them: their settings, what stands for them here, a remark. Several settings of a row with as many flags,
all divided by ", ", stand for one another in this order. `NAME=VALUE` is one value of a setting, and in
`…=VALUE` the name is the last one that had a value. In place of flags, `none` means that rlcore has nothing
of the kind, and `implied` that nothing is to be set.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

COMPARED: Mapping[str, str] = {"prime_rl": "prime-rl"}
"""File → the framework's name."""

NONE, IMPLIED = "none", "implied"


@dataclass(frozen=True)
class Row:
    """One row of a table; its cells are Markdown."""

    theirs: str
    ours: str
    remark: str = ""


@dataclass(frozen=True)
class Meaning:
    """What stands for one setting, or for the `value` of it; plain text."""

    ours: str
    value: str = ""
    remark: str = ""


def tables(file: str) -> Mapping[str, list[Row]]:
    """The rows of each topic, in the order of the page."""
    text = resources.files(f"{__package__}.settings").joinpath(f"{file}.toml").read_text()
    return {topic: [Row(*cells) for cells in rows] for topic, rows in tomllib.loads(text).items()}


def hints(file: str) -> Iterator[tuple[str, str]]:
    """Each setting of the framework, and the end of a sentence that says what stands for it."""
    by_name = defaultdict(list)
    for name, meaning in meanings(row for rows in tables(file).values() for row in rows):
        by_name[name].append(meaning)
    yield from ((name, counterpart_sentence(every)) for name, every in by_name.items())


def meanings(rows: Iterable[Row]) -> Iterator[tuple[str, Meaning]]:
    """Each setting that the rows name, once for each of its values, and what stands for it."""
    last = ""
    for row in rows:
        settings = re.findall(r"`([^`]+)`", row.theirs)
        ours = row.ours.split(", ")
        paired = ours if len(ours) == len(settings) else [row.ours] * len(settings)
        for setting, here in zip(settings, paired, strict=True):
            name, _, value = (part.strip(' "') for part in setting.partition("="))
            last = name if value and name != "…" else last
            yield last if name == "…" else name, Meaning(_plain(here), value, _remark(row))


def counterpart_sentence(counterparts: list[Meaning]) -> str:
    """The end of the sentence "NAME has it; …" for one setting."""
    if len(counterparts) > 1:
        values = defaultdict(list)
        for meaning in counterparts:
            values["nothing" if meaning.ours == NONE else meaning.ours].append(meaning.value)
        return "here it is " + ", ".join(f"{here} for {' and '.join(each)}" for here, each in values.items())
    [only] = counterparts
    start = {NONE: "rlcore has nothing of the kind", IMPLIED: "nothing is to be set here"}
    ours = start.get(only.ours, f"here it is {only.ours}" + (f" for {only.value}" if only.value else ""))
    return f"{ours} ({only.remark})" if only.remark else ours


def _remark(row: Row) -> str:
    """The first sentence of the remark."""
    return _plain(row.remark).partition(". ")[0]


def _plain(markdown: str) -> str:
    """Without markup. A link in brackets of its own is one that only a page can follow."""
    markdown = re.sub(r" \(\[[^]]+\]\([^)]+\)\)", "", markdown)
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", markdown).replace("`", "")
