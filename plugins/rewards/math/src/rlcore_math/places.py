# ruff: noqa: RUF001 - people write these signs for a minus
r"""Where a response holds its answer: in a box, on a line, or anywhere, each found in linear time."""

import re

LONGEST = 400
"""Characters that an answer may have; a longer one is no answer."""

_TAIL = 1000
"""Characters at the end of a response in which an answer without a mark is looked for."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])[ \t]{0,9}")
_FORMULA = r"\$\$[^$]+\$\$|(?<!\\)\$[^$\n]+(?<!\\)\$|\\\([^\n]+?\\\)|\\\[[^\0]+?\\\]"
_NUMBER = (
    r"(?<![\w.}\\^_/])[-+−–]?[ \t]?[€£¥₹]?\\?\$?[-−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+\b)?"
    r"(?:[ \t]?/[ \t]?\d+|[ \t]\d+/\d+|(?:[ \u202f\u00a0]\d{3})+(?!\d))?"
    r"[ \t]?[½⅓⅔¼¾]?(?:[ \t]?\\?%)?(?![\w])|(?<!\w)[½⅓⅔¼¾]"
)
_VALUE = re.compile(rf"{_FORMULA}|{_NUMBER}")
_MARK = re.compile(
    r"(?:\banswer[ \t]{0,3}(?:\*\*)?[ \t]{0,3}(?:\bis\b[ \t]{0,3}:?|:|=)(?:\*\*)?|####|<answer>)",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"(?:[<>≠≈~≤≥±^_]|\\(?:neq?|approx|leq?|geq?|sim|pm|lt|gt|not)\b|"
    r"\b(?:not|n't|isn't|approximately|about|around|roughly|nearly|almost|"
    r"than|least|most|over|under|above|below|minus|"
    r"between|step|case|part|line|equation|mod|modulo|base|degree))\s*\**\s*$",
    re.IGNORECASE,
)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|begin|end)\s*\{[^{}]*\}")
_JOINED = re.compile(r"\s*(?:\\text\{\s*)?(?:or|to|and)\b\s*\}?\s*[-$\\\d]")
_PROSE = re.compile(
    r"(?<![\\a-zA-Z{])(?!(?:and|or|to|sin|cos|tan|log|sqrt|exp|pi|True|False|Yes|No)\b)[a-zA-Z]{2,}"
)


def has_box(text: str) -> bool:
    """Whether a response has a box, closed or not."""
    return bool(_BOX.search(text))


def has_prose(text: str) -> bool:
    """Whether a text has words, beside LaTeX's commands and a few that stand between formulas."""
    return bool(_PROSE.search(_TEXT.sub("", text)))


def last_box(text: str) -> str | None:
    r"""What the last `\boxed{}` holds; None without one, or where it isn't closed."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    found = _BOX.match(text, start) if start >= 0 else None
    if not found:
        return None
    if text[found.end() : found.end() + 1] != "{":
        bare = re.compile(r"[-\d.]+|[a-zA-Z]").match(text, found.end())
        return bare[0] if bare else None
    depth, place, end = 0, found.end(), min(len(text), found.end() + LONGEST + 2)
    while place < end:
        letter = text[place]
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return text[found.end() + 1 : place]
        place += 2 if letter == "\\" else 1
    return None


def last_value(text: str) -> str | None:
    """What follows the last "the answer is" or `####`; without one, the last formula or number."""
    tail = text[-_TAIL:]
    marks = list(_MARK.finditer(tail))
    if marks:
        rest = tail[marks[-1].end() :].lstrip()
        formula = _VALUE.match(rest) if rest.startswith((r"\[", "$$")) else None
        return _value(rest, formula) if formula else on_line(rest.partition("\n")[0])
    values = list(_VALUE.finditer(tail))
    return _value(tail, values[-1]) if values else None


def on_line(line: str) -> str | None:
    """The answer that a line holds: its box; all of it, without prose; or its first formula or number."""
    line = line[:LONGEST]
    if _BOX.search(line):
        return last_box(line)
    line = line.strip().strip("*`").strip()
    if line.endswith(".") and not line.endswith(".."):
        line = line[:-1].rstrip().strip("*`")
    if not line:
        return None
    whole = re.fullmatch(r"\$\$?([^$]+)\$\$?|\\\((.+)\\\)|\\\[(.+)\\\]", line)
    if whole and not line.endswith(r"\$"):
        return next(part for part in whole.groups() if part)
    if not has_prose(line) and not re.search(r"(?<!\\)\$.*(?<!\\)\$", line):
        return line
    value = _VALUE.search(line)
    if value:
        return _value(line, value)
    return line


def _value(text: str, found: re.Match[str]) -> str | None:
    """A formula without its delimiters, or a number; None where words around it say that it isn't meant."""
    before = text[max(0, found.start() - 20) : found.start()]
    if _DOUBT.search(before.replace("<answer>", "")) or _JOINED.match(text, found.end()):
        return None
    value = found[0].strip()
    for begin, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if value.startswith(begin) and value.endswith(end) and len(value) > len(begin) + len(end):
            return value[len(begin) : -len(end)]
    return value
