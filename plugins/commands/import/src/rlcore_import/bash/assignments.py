"""Commands of a bash script that set variables: `A=b`, `declare`, `let`, `read`, `set` and `shift`."""

import re
from collections.abc import Sequence

from rlcore import ConfigError
from rlcore_import.bash.conditions import Status, is_open
from rlcore_import.bash.sums import SETS
from rlcore_import.bash.values import Values
from rlcore_import.bash.variables import Part
from rlcore_import.bash.words import Array, Command, braced

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP = re.compile(r"\s*(\+\+|--)?\s*([A-Za-z_]\w*)\s*(\+\+|--)?\s*")


def assign(word: str | Array, where: str, values: Values) -> str:
    """`A=b`, `A+=b` and `A=(…)`: the text that a variable is set to; "" for an array."""
    if isinstance(word, Array):
        values.extend(word.name, word.words, more=word.more)
        if any(re.match(r"\[.*\]=", item) for item in word.words):  # A=([2]=b)
            values.forget(word.name, f"{where} fills")
        return ""
    name, more, right = parts(word)
    if not more and is_open(right, values):  # `A=${A:-}`
        values.unset(name)
    elif more and name in values.arrays:  # of its first item
        values.forget(name, f"{where} fills")
    elif not (more and name in values.unknown):
        value = values.text(right)
        value = values.variables.get(name, "") + value if more else value
        values.assign(name, value, f"{where} fills")
        return value
    return ""


def assign_item(item: re.Match[str], where: str, values: Values) -> None:
    """`A[0]=b`."""
    name, index, more, right = item.groups()
    if more or not values.replace_item(name, index, right):
        values.forget(name, f"{where} fills")


def declare(command: Command, words: list[str], values: Values, scope: dict[str, Part] | None) -> str:
    """`declare`, `local`, `export` and the like: the texts that it sets.

    `scope`: of the function that runs, what its local names were before.
    """
    options = "".join(word[1:] for word in words if re.fullmatch(r"-\w+", word))
    if "n" in options and words[0] not in ("export", "readonly"):
        raise ConfigError(
            f"{command.where}: found `{words[0]} -n`, expected no name that stands for another; write "
            "the variable's own name."
        )
    is_local = words[0] in ("local", "declare", "typeset") and "g" not in options
    given = command.words[command.words.index(words[0]) + 1 :]
    split = [one for word in given for one in (braced(word) if isinstance(word, str) else [word])]
    texts = []
    for word in map(_unquoted, split):
        name = word.name if isinstance(word, Array) else re.split(r"\+?=", word)[0]
        if not name.isidentifier():
            continue
        if scope is not None and is_local:
            scope.setdefault(name, values.part(name))
            if not assigns(word):
                values.unset(name)
        if assigns(word):
            texts.append(assign(word, command.where, values))
        if re.search("[iAlu]", options) and words[0] not in ("export", "readonly"):
            values.forget(name, f"{command.where} fills")
    return "\n".join(texts)


def let(texts: Sequence[str], where: str, values: Values) -> Status:
    """`let` and `((…))`: whether the last is not 0."""
    value: str | None = None
    for text in map(values.text, texts):
        if (step := _STEP.fullmatch(text)) and bool(step[1]) != bool(step[3]):
            value = _set_sum(step[2], f"{step[2]}{(step[1] or step[3])[0]}1", where, values)
            if step[3] and value is not None:  # the value of `i++` is that before
                value = values.sum(f"{value}{'-' if step[3] == '++' else '+'}1")
        elif (setting := _SET.fullmatch(text)) and not SETS.search(setting[3]):
            name, operator, right = setting.groups()
            value = _set_sum(name, f"{name}{operator}({right})" if operator else right, where, values)
        else:
            value = values.sum(text)
    return None if value is None else value != "0"


def change(name: str, more: list[str], where: str, values: Values) -> Status:
    """Runs a command that sets variables to what is not known here."""
    for word in map(values.text, more[:2] if name == "printf" else more):
        changed = re.fullmatch(r"([A-Za-z_]\w*)(\[.*)?", word, re.DOTALL)
        if changed and name == "unset" and not changed[2]:
            values.unset(changed[1])
        elif changed and (name != "printf" or more[0] == "-v"):
            values.forget(changed[1], f"{where} fills")
    return True if name in ("unset", "printf") else None


def arguments(name: str, more: list[str], values: Values) -> Status:
    """`set` and `shift`."""
    if name == "shift":
        count = values.text(more[0]) if more else "1"
        values.shift(int(count) if count.isdigit() else None)
    elif "--" in more or (more and more[0][0] not in "-+"):
        values.arguments(values.all_fields(more[more.index("--") + 1 if "--" in more else 0 :]))
    return True


def assigns(word: str | Array) -> bool:
    return isinstance(word, Array) or _ASSIGNED.fullmatch(word) is not None


def parts(word: str) -> tuple[str, bool, str]:
    """Splits `A=b` and `A+=b` into the name, whether it adds, and the right side."""
    assigned = _ASSIGNED.fullmatch(word)
    assert assigned
    return assigned[1], bool(assigned[2]), assigned[3]


def _unquoted(word: str | Array) -> str | Array:
    """`export "A=b"` without its quotes."""
    return word[1:-1] if isinstance(word, str) and len(word) > 1 and word[0] in "\"'" else word


def _set_sum(name: str, text: str, where: str, values: Values) -> str | None:
    value = values.sum(text)
    if value is None:
        values.forget(name, f"{where} fills")
    else:
        values.assign(name, value, where)
    return value
