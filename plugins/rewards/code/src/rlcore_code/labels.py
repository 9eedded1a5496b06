"""`tests_of`: the tests that a label holds, in the forms of public data sets."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rlcore import Json, parse_json
from rlcore_code.checks import tested

_FORMS = (
    'the label holds no tests: expected Python code with asserts, a list of such, or {"inputs": […], '
    '"outputs": […]} with as many texts in each'
)
_KINDS = ({"stdin", "stdin_stdout"}, {"functional", "function_call"})
"""Words for tests of standard input, and for those of a function."""
_LISTS = """\
def _rlcore_lists(value):
    if isinstance(value, (list, tuple)):
        return [_rlcore_lists(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _rlcore_lists(one) for key, one in value.items()}
    return value
"""


@dataclass(frozen=True)
class Streams:
    """Tests that give a program its standard input and expect its standard output."""

    pairs: Sequence[tuple[str, str]]

    @property
    def counts(self) -> Sequence[bool]:
        """Each of them tests something."""
        return [True] * len(self.pairs)


@dataclass(frozen=True)
class Asserts:
    """Tests that are Python code and use what the solution defines: one that raises has failed.

    `counts`: for each whether it tests something. Another one, such as an import, counts where it fails.
    """

    tests: Sequence[str]
    counts: Sequence[bool]


def tests_of(label: Json) -> Streams | Asserts:
    """The tests of a label. `ValueError`, a sentence, where it holds none, or none that can fail.

    JSON text counts as what it says. Beside the documented forms it reads those of APPS and PRIME (a table
    with `fn_name`), code_contests (`input`, `output`), LiveCodeBench (a list of such tables), and
    `test_cases` with one.
    """
    if isinstance(label, str) and label.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):  # Python may begin so too
            label = parse_json(label)
    if isinstance(label, str) and label.strip():
        return _asserts([label])
    if isinstance(label, list | tuple) and label and all(isinstance(test, Mapping) for test in label):
        label = _one_table(label)
    if isinstance(label, list | tuple) and label and all(isinstance(test, str) for test in label):
        return _asserts([str(test) for test in label])
    if isinstance(label, Mapping):
        return tests_of(label["test_cases"]) if "test_cases" in label else _of_table(label)
    raise ValueError(_FORMS)


def _asserts(tests: Sequence[str]) -> Asserts:
    return Asserts(tests, tested(tests))


def _one_table(rows: Sequence[Mapping[str, Json]]) -> Json:
    """A list of tests, each with its kind, as one table; None where they are of several kinds."""
    kinds = {row.get("testtype", row.get("type", "stdin")) for row in rows}
    names = {_name_of(row) for row in rows}
    if len(names) > 1 or not any(kinds <= same for same in _KINDS):
        return None
    columns = {f"{key}s": [row.get(key) for row in rows] for key in ("input", "output")}
    return {**columns, "fn_name": next(iter(names))}


def _name_of(row: Mapping[str, Json]) -> Json:
    """The function that a test calls; None: it runs the program."""
    metadata = row.get("metadata")
    named = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return named or row.get("fn_name")


def _of_table(table: Mapping[str, Json]) -> Streams | Asserts:
    inputs, outputs = (table.get(f"{key}s", table.get(key)) for key in ("input", "output"))
    if (
        not isinstance(inputs, list)
        or not isinstance(outputs, list)
        or len(inputs) != len(outputs)
        or not inputs
    ):
        raise ValueError(_FORMS)
    if unknown := set(table) - {"input", "output", "inputs", "outputs", "fn_name"}:
        raise ValueError(f"the label has the key {min(unknown)!r}, which no test of this form has")
    name = table.get("fn_name")
    if name is not None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"the label's fn_name is {name!r}, expected the name of a function")
        return _asserts([_call(name, *pair) for pair in zip(inputs, outputs, strict=True)])
    pairs = [(_lines(given), _lines(expected)) for given, expected in zip(inputs, outputs, strict=True)]
    if not any(expected.strip() for _, expected in pairs):
        raise ValueError("the label tests nothing: it expects no output of any input")
    return Streams(pairs)


def _lines(text: Json) -> str:
    """A text, or its lines as a list."""
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        return "\n".join(map(str, text))
    if not isinstance(text, str):
        raise ValueError(_FORMS)
    return text


def _call(name: str, given: Json, expected: Json) -> str:
    """A test that calls the function, or the method of the class Solution, `name`.

    As text, the arguments are JSON, one a line, and the answer is JSON; else a list of one answer may stand
    for the answer. Tuples count as lists.
    """
    try:
        arguments = (
            [json.loads(line) for line in given.split("\n") if line] if isinstance(given, str) else given
        )
        answers = [json.loads(expected) if isinstance(expected, str) else expected]
    except ValueError as error:
        raise ValueError(f"the label's inputs and outputs of {name} must be JSON: {error}") from error
    if not isinstance(arguments, list):
        raise ValueError(f"the label's inputs of {name} must be lists of arguments, found {arguments!r}")
    if isinstance(expected, list) and len(expected) == 1:
        answers += expected
    return (
        f"{_LISTS}try:\n    _rlcore_call = Solution().{name}\nexcept NameError:\n    _rlcore_call = {name}\n"
        f"assert _rlcore_lists(_rlcore_call(*{arguments!r})) in {answers!r}"
    )
