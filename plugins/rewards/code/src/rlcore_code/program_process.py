"""The program's process: runs a solution and answers what the judge asks of it (`judge_process.py`).

Nothing here is trusted. The solution can read and change all of it, answer in its place and leave; it knows
no more than the names and arguments that it is asked for, and what it answers is data to the judge.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rlcore_code.wire import Line, decode, encode
else:  # in the jail, `wire.py` stands beside this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from wire import Line, decode, encode

    sys.path.pop(0)


class Program:
    """The names of a solution, and the objects of it that the judge holds by number."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._space: dict[str, Any] = {"__name__": "solution"}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._asks = {
            "name": self._space.__getitem__,
            "call": lambda function, *given, **named: function(*given, **named),
            **{name: getattr(builtins, name) for name in BUILTINS},
            **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem")},
        }

    def run(self) -> None:
        """The solution, from its text to the end of what is asked of it."""
        source, self._line.write_limit = self._line.receive()
        exec(compile(source, "solution.py", "exec"), self._space)
        while True:
            self._answer(self._line.receive())

    def _answer(self, message: Any) -> None:
        number, ask, given, named = message
        given, named = self._decoded(given), self._decoded(named)
        try:
            value = self._encoded(self._asks[ask](*given, **named))
            after = self._encoded(given[1:]) if ask == "call" and value is None else None
            self._line.send([number, "value", value, after])
        except BaseException as error:
            self._line.send([number, "raise", self._refer(type(error)), _words(error), None])

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._refer)

    def _decoded(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _refer(self, value: Any) -> Any:
        if isinstance(value, GivenFunction):
            return ["yours", value.number]
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            known = next(kind for kind in value.__mro__ if kind.__module__ == "builtins")
            return ["error", None if known is value else number, known.__name__]
        return ["mine", number]

    def _resolve(self, tag: str, rest: list[Any]) -> Any:
        return self._objects[rest[0]] if tag == "yours" else GivenFunction(self, rest[0])

    def call_back(self, number: int, given: tuple[Any, ...]) -> Any:
        """What the judge's function says, while the judge waits for an answer."""
        self._line.send(["call", number, self._encoded(given)])
        while True:
            message = self._line.receive()
            if message[0] == "value":
                return self._decoded(message[1])
            if message[0] == "raise":
                raise getattr(builtins, message[1])("raised by a function of the test")
            self._answer(message)


class GivenFunction:
    """A function of the tests, as the solution is given it."""

    def __init__(self, program: Program, number: int) -> None:
        self._program, self.number = program, number

    def __call__(self, *given: Any) -> Any:
        return self._program.call_back(self.number, given)


BUILTINS = (
    *("getattr", "setattr", "delattr", "iter", "next", "len", "bool", "str", "repr", "int", "float"),
    *("isinstance", "issubclass"),
)
"""What the judge may ask of an object besides a call."""


def _words(error: BaseException) -> Any:
    """The arguments of an exception where they are plain texts and numbers, else its text."""
    if all(type(arg) in (str, int, float) for arg in error.args):
        return ["tuple", *error.args]
    try:
        return ["tuple", str(error)]
    except Exception:
        return ["tuple"]


def main() -> None:
    """Takes over standard input and output, which lead to the judge; the solution has neither."""
    line = Line(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    Program(line).run()


if __name__ == "__main__":
    main()
