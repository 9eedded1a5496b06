"""The judge's process: runs the tests, and asks the program's process for what the program does.

What a test names and doesn't define itself, it asks the program for (`Tests`). What the program answers is
plain data, of exactly Python's types, and compared here; anything else that it names stays an `Opaque`, which
is equal to nothing. An answer of another form than was asked for ends the trust: that test and all further
ones have failed, whatever the tests make of it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import symtable
import sys
from types import BuiltinFunctionType, FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from rlcore_code.wire import Line, WireError, decode, encode
else:  # in the jail, `wire.py` stands beside this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from wire import Line, WireError, decode, encode

    sys.path.pop(0)


class Broken(BaseException):
    """The program's process is gone, or says what it wasn't asked."""


class ProgramError(Exception):
    """The program raised what is no ordinary exception of Python's own."""


class Program:
    """The program's process as the judge sees it."""

    def __init__(self, line: Line, source: str) -> None:
        self._line = line
        self._functions: list[Any] = []
        self._errors: dict[int, type[Exception]] = {}
        self.broken = False
        self._send([source, line.read_limit])

    def ask(self, what: str, *given: Any, **named: Any) -> Any:
        """What the program answers, or what it raises."""
        number = int.from_bytes(os.urandom(6), "little")  # a program can't answer before it is asked
        self._send([number, what, self._encoded(given), self._encoded(named)])
        while True:
            message = self._receive()
            if isinstance(message, list) and len(message) == 3 and message[0] == "call":
                self._call_back(message[1], message[2])
                continue
            if not isinstance(message, list) or len(message) not in (4, 5) or message[0] != number:
                self._break()
            if message[1] == "value" and len(message) == 4:
                value, after = self._decoded(message[2]), self._decoded(message[3])
                if what == "call" and value is None:
                    _change(given[1:], after)
                return value
            if message[1] == "raise" and len(message) == 5:
                raise self._error(message[2], message[3], what)
            self._break()

    def _call_back(self, number: Any, given: Any) -> None:
        """Calls a function that a test gave the program."""
        arguments = self._decoded(given)
        if type(number) is not int or not 0 <= number < len(self._functions) or type(arguments) is not tuple:
            self._break()
        try:
            self._send(["value", self._encoded(self._functions[number](*arguments))])
        except Exception as error:
            name = type(error).__name__  # its text is none of the program's business
            self._send(["raise", name if _is_error(name) else "RuntimeError"])

    def _error(self, kind: Any, words: Any, what: str) -> BaseException:
        error, given = self._decoded(kind), self._decoded(words)
        if not isinstance(error, type) or not issubclass(error, Exception) or type(given) is not tuple:
            self._break()
        ends_a_loop = issubclass(error, (StopIteration, StopAsyncIteration))  # a loop of the test
        if not ends_a_loop or (what, error) == ("next", StopIteration):
            try:
                return error(*given)
            except TypeError:  # such as UnicodeDecodeError, which wants five arguments
                pass
        return ProgramError(f"the program raised {error.__name__}")

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._refer)

    def _decoded(self, data: Any) -> Any:
        try:
            return decode(data, self._resolve)
        except Exception:
            self._break()

    def _refer(self, value: Any) -> Any:
        if type(value) is Opaque:
            return ["yours", value._rlcore_number]
        for number, kind in self._errors.items():
            if kind is value:
                return ["yours", number]
        if not isinstance(value, (FunctionType, BuiltinFunctionType, MethodType)):
            raise TypeError(f"a {type(value).__name__} of a test cannot be given to the program")
        self._functions.append(value)
        return ["mine", len(self._functions) - 1]

    def _resolve(self, tag: str, rest: list[Any]) -> Any:
        if tag == "error" and len(rest) == 2 and isinstance(rest[1], str):
            base = getattr(builtins, rest[1]) if _is_error(rest[1]) else ProgramError
            if rest[0] is None:
                return base
            if type(rest[0]) is int:
                return self._errors.setdefault(rest[0], type("ErrorOfTheProgram", (base,), {}))
        if len(rest) != 1 or type(rest[0]) is not int:
            raise WireError("no reference")
        if tag == "mine":
            return Opaque(self, rest[0])
        if tag == "yours" and 0 <= rest[0] < len(self._functions):
            return self._functions[rest[0]]
        raise WireError("no reference")

    def _send(self, message: Any) -> None:
        try:
            if not self.broken:
                self._line.send(message)
        except OSError:
            self._break()

    def _receive(self) -> Any:
        try:
            if not self.broken:
                return self._line.receive()
        except (WireError, OSError):
            pass
        self._break()

    def _break(self) -> NoReturn:
        self.broken = True
        raise Broken


class Opaque:
    """An object of the program that is no plain data. The program says what its parts and calls give.

    Comparisons and arithmetic with it fail: it would be the program that decides them. No two are the same.
    """

    __slots__ = ("_rlcore_number", "_rlcore_program")
    __hash__ = None  # type: ignore[assignment]  # the way to say that objects are not hashable

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_rlcore_program", program)
        object.__setattr__(self, "_rlcore_number", number)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._rlcore_program.ask("call", self, *given, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__dict__"):
            raise AttributeError(name)  # such as numpy's __array_interface__, which holds an address
        return self._rlcore_program.ask("getattr", self, name)

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Opaque and self._rlcore_program.ask("isinstance", value, self) is True

    def __subclasscheck__(self, value: Any) -> bool:
        return type(value) is Opaque and self._rlcore_program.ask("issubclass", value, self) is True

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of the program cannot be copied")


def _question(what: str) -> Any:
    return lambda self, *given: self._rlcore_program.ask(what, self, *given)


def _refusal(self: Opaque, other: Any) -> NoReturn:
    raise TypeError("an object of the program that is no plain data cannot be compared")


for _name in (
    *("setattr", "delattr", "iter", "next", "len", "bool", "str", "repr", "int", "float"),
    *("getitem", "setitem", "delitem"),
):
    setattr(Opaque, f"__{_name}__", _question(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Opaque, f"__{_name}__", _refusal)


class Tests:
    """Tests that share their names, and get from the program those that they use and don't define."""

    def __init__(self, tests: Sequence[str], program: Program) -> None:
        self._program = program
        self._tests = [_parsed(test) for test in tests]
        known = [test for test in self._tests if test is not None]
        self._modules = _modules(known)
        self.packages = {name for test in known for name in test.imported} - sys.stdlib_module_names
        own = {name for test in known for name in test.defined}
        foreign = {name for test in known for name in test.used} - own - set(dir(builtins)) - self._modules
        called = {name for test in known for name in test.called} & set(dir(builtins)) - own
        # "assert sum(10, 15) == 6" means the program's function where the tests call nothing else.
        self._foreign = foreign or (called if len(called) == 1 else set())
        self._space: dict[str, Any] = {"__name__": "tests"}
        self._given: dict[str, Any] = {}

    def run(self) -> list[bool]:
        """Which of them pass."""
        return [test is not None and self._passes(test) for test in self._tests]

    def _passes(self, test: Test) -> bool:
        try:
            for name in sorted(test.used & (self._foreign | self._modules)):
                self._provide(name)
            exec(test.code, self._space)
        except BaseException:
            return False
        return not self._program.broken

    def _provide(self, name: str) -> None:
        """Gets a name anew, unless the tests have given it a value."""
        if name in self._space and self._space[name] is not self._given.get(name, self):
            return
        try:
            asked = name not in self._modules
            value = self._program.ask("name", name) if asked else importlib.import_module(name)
        except Exception:  # then the test ends with a NameError if it comes to use the name
            return
        self._space[name] = self._given[name] = value


class Test:
    """A test with names: those that it uses from outside, defines, calls, and takes parts of."""

    def __init__(self, source: str) -> None:
        tree = ast.parse(source, "test.py")
        self.code = compile(tree, "test.py", "exec")
        self.used: set[str] = set()
        self.defined: set[str] = set()
        top = symtable.symtable(source, "test.py", "exec")
        tables = [top]
        for table in tables:
            tables += table.get_children()
            for symbol in table.get_symbols():
                if symbol.is_referenced() and (table is top or symbol.is_global()):
                    self.used.add(symbol.get_name())
                if table is top and (symbol.is_assigned() or symbol.is_imported()):
                    self.defined.add(symbol.get_name())
        nodes = list(ast.walk(tree))
        self.imported = {name.partition(".")[0] for node in nodes for name in _imported(node)}
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        parted = [node.value for node in nodes if isinstance(node, ast.Attribute)]
        self.called = {node.id for node in called if isinstance(node, ast.Name)}
        self.parted = {node.id for node in parted if isinstance(node, ast.Name)}


def _imported(node: ast.AST) -> Sequence[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def _parsed(source: str) -> Test | None:
    try:
        return Test(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _modules(tests: Sequence[Test]) -> set[str]:
    """Names of the standard library's modules that the tests use as such without an import of their own."""
    parted = {name for test in tests for name in test.parted}
    called = {name for test in tests for name in test.called}
    return (parted - called) & sys.stdlib_module_names


def _is_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


def _change(given: Sequence[Any], after: Any) -> None:
    """Gives lists, dicts and sets that the program got what it has left in them."""
    if type(after) is not tuple:
        return
    for old, new in zip(given, after, strict=False):
        if type(old) is not type(new):
            continue
        if type(old) in (list, bytearray):
            old[:] = new
        elif type(old) in (dict, set):
            old.clear()
            old.update(new)


def main() -> None:
    """Reads the tests and the solution, and writes the verdict: a list of booleans, one for each test."""
    job = json.load(sys.stdin)
    verdict = os.dup(1)
    os.dup2(2, 1)
    line = Line(3, 4)
    line.read_limit = job["limit"]
    program = Program(line, job["source"])  # which begins while the tests are read
    tests = Tests(job["tests"], program)
    if tests.packages:  # left out at the start, where it costs more than all of this
        importlib.import_module("site").main()
    passed = tests.run()
    os.write(verdict, json.dumps(passed).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
