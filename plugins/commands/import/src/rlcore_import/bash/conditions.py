"""Whether a condition of a bash script holds: True, False, or None where rlcore cannot tell."""

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlcore_import.bash.values import Values
from rlcore_import.bash.words import is_known, plain

Status = bool | None
_BETWEEN: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_IF_SET = re.compile(r'"?\$\{([A-Za-z_]\w*):?-\}"?')
_GLOB = re.compile(r"[*?\[\\(]")


def negation(status: Status) -> Status:
    return None if status is None else not status


def all_of(statuses: Sequence[Status]) -> Status:
    return False if False in statuses else None if None in statuses else True


def any_of(statuses: Sequence[Status]) -> Status:
    return True if True in statuses else None if None in statuses else False


def holds(words: Sequence[str], values: Values) -> Status:
    """Whether `[ … ]`, `test …` or `[[ … ]]` holds."""
    if words[0] == "[[":
        return _double(list(words[1:-1]), values)
    inside = words[1:-1] if words[0] == "[" else words[1:]
    fields = [one for word in inside for one in ([None] if is_open(word, values) else _fields(word, values))]
    return _test(fields, values)


def matches(text: str | None, pattern: str, values: Values) -> Status:
    """Whether a pattern of `case` or `==` fits all of a text."""
    if pattern == "*":
        return True
    wanted = _text(pattern, values)
    if text is None or wanted is None:
        return None
    if not _GLOB.search(wanted) or (pattern[0] in "\"'" and pattern.index(pattern[0], 1) == len(pattern) - 1):
        return text == wanted
    readable = wanted == pattern and not re.search(r"\[[\^:.=]|[\\(]", wanted)
    return fnmatch.fnmatchcase(text, wanted) if readable else None


def is_open(word: str, values: Values) -> bool:
    """Whether it asks for what the caller of the script has set, if anything: `${A:-}`."""
    asked = _IF_SET.fullmatch(word)
    known = (values.variables, values.arrays, values.unknown)
    return asked is not None and not any(asked[1] in names for names in known)


def nearby_file(named: str, script: Path) -> Path | None:
    """A file that the script names, if it is there: as named, or else by the end of its path near the script.

    The script may be of another machine, such as slime's container, which has slime in /root/slime.
    """
    return next((path for path in _places(named, script) if path.is_file()), None)


def _places(named: str, script: Path) -> Iterator[Path]:
    yield Path(named)
    parts = [part for part in Path(named).parts if part != "/"]
    for folder in list(script.absolute().parents)[:3]:
        for start in range(len(parts)):
            if start == 0 or len(parts) - start > 1:
                yield folder.joinpath(*parts[start:])


def _fields(word: str, values: Values) -> list[str | None]:
    return [one if is_known(one) else None for one in values.fields(word)]


def _text(word: str, values: Values) -> str | None:
    return None if is_open(word, values) else values.known(word)


def _test(fields: list[str | None], values: Values) -> Status:
    match fields:
        case []:
            return False
        case [one]:
            return None if one is None else bool(one)
        case ["!", *rest]:
            return negation(_test(rest, values))
        case [str(kind), one]:
            return _of_one(kind, one, values)
        case [left, str(kind), right]:
            if kind in ("=", "==", "!="):
                same = None if left is None or right is None else left == right
                return negation(same) if kind == "!=" else same
            return _of_numbers(left, kind, right)
    return None


def _of_one(kind: str, word: str | None, values: Values) -> Status:
    if word is None:
        return None
    if kind in ("-z", "-n"):
        return (word == "") == (kind == "-z")
    if kind in ("-e", "-f", "-r", "-s") and word:
        return True if nearby_file(plain(word), values.script) else None
    return True if kind == "-v" and word in values.variables else None


def _of_numbers(left: str | None, kind: str, right: str | None) -> Status:
    numbers = [word for word in (left, right) if word is not None and re.fullmatch(r"-?\d+", word)]
    return _BETWEEN[kind](*map(int, numbers)) if kind in _BETWEEN and len(numbers) == 2 else None


def _double(words: list[str], values: Values) -> Status:
    for sign, combine in (("||", any_of), ("&&", all_of)):
        parts = _parts(words, sign)
        if len(parts) > 1:
            return combine([_double(part, values) for part in parts])
    match words:
        case ["!", *rest]:
            return negation(_double(rest, values))
        case ["(", *inner, ")"]:
            return _double(inner, values)
        case [left, ("=" | "==" | "!=") as kind, right]:
            same = matches(_text(left, values), right, values)
            return negation(same) if kind == "!=" else same
        case [left, kind, right]:
            return _of_numbers(_text(left, values), kind, _text(right, values))
    first = words[:-1]
    return _test([*first, *(_text(word, values) for word in words[-1:])], values)


def _parts(words: list[str], sign: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word == "(") - (word == ")")
        if word == sign and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
