"""From a run script, or a list of arguments, to flags and their values.

Of bash, only what run scripts are made of is read: assignments of one line, arrays, `source`, files that
`cat` writes, and variables as far as they are plain. Nothing is executed.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlcore import ConfigError

_ASSIGNED = re.compile(r"\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(.*)")
_ARRAY = re.compile(r"\s*([A-Za-z_]\w*)(\+?)=\(")
_SOURCE = re.compile(r"\s*(?:source|\.)\s+(.+)")
_USED = re.compile(r"\$\{([A-Za-z_]\w*)\[@\]\}")
_PLAIN = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?-([^{}]*)\}")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_SEQUENCE = re.compile(r"\$\(seq (\d+) (?:(\d+) )?(\d+)\)")
_ENTRY = re.compile(r"\S*\btrain\w*\.py")
_WRITES = re.compile(r"""\s*cat\s*>\s*["']?([^\s"']+)["']?\s*<<-?\s*(["']?)(\w+)["']?\s*""")
"""A file that the script writes: its path, the quote of the word that ends its text, and that word."""
_PASSED_ON = re.compile(r"\$\{\w+\[@\]\}|\$\{?[@*]\}?")
"""Arrays, which are read by name, and the script's own arguments: `rlcore import` takes them behind it."""
_OPERATOR = re.compile(r"""(?P<quoted>"(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?:(?<=\s)\d)?[|&;<>]""")
"""What ends a command in bash, or redirects it; or else a quoted text, in which it would not."""
MOST_SCRIPTS = 16
"""Scripts that one may read by `source`, one within the other."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """`flags`: in the order of their first mention, each with its values. `entry`: the program, if named.

    `files`: the texts that a script writes as it runs, by the words that stand for their paths in `flags`.
    """

    flags: Mapping[str, tuple[str, ...]]
    entry: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def of_words(words: Sequence[str]) -> Arguments:
    """Of a list of arguments; what stands before the first flag names the program. ConfigError."""
    flags: dict[str, tuple[str, ...]] = {}
    entry, current = "", ""
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            current, equals, value = word.partition("=")
            flags[current] = (value,) if equals else ()
        elif current:
            flags[current] = (*flags[current], word)
        elif _ENTRY.fullmatch(word):
            entry = Path(word).name
        elif word.endswith(".py"):
            raise ConfigError(
                f"{word}: found a Python program, expected the shell script that starts it, or flags such as "
                "--lr 1e-6."
            )
        elif word not in ("python", "python3", "-m"):
            raise ConfigError(
                f"found {word!r} before the first flag, expected a shell script or flags such as --lr 1e-6."
            )
    return Arguments(flags=flags, entry=entry)


def of_script(path: Path, given: Mapping[str, str]) -> Arguments:
    """Of a bash script; `given`: variables that it sets as it runs. ConfigError where it has no flags."""
    script = _Script(variables=dict(given), fixed=frozenset(given))
    script.read(path)
    words = [_path(word) if _path(word) in script.files else word for word in script.words()]
    if not any(word.startswith("--") for word in words):
        raise ConfigError(
            f"{path}: found no flags, expected a run script with arrays of them, such as ROLLOUT_ARGS=(…)."
        )
    return replace(of_words(words), files=script.files)


@dataclass
class _Script:
    """What has been read. `commands`: the lines that are no assignment and start the training."""

    variables: dict[str, str]
    fixed: frozenset[str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    read_scripts: int = 0

    def read(self, path: Path) -> None:
        """A script, and those that it reads by `source` where they are there."""
        self.read_scripts += 1
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: found no text, expected a shell script.") from error
        lines = iter(text.replace("\\\n", " ").splitlines())
        for line in lines:
            if array := _ARRAY.match(line):
                self._array(array, line, lines)
            elif writes := _WRITES.fullmatch(line):
                self._write(writes, lines)
            elif _starts_training(line):  # perhaps with variables in front: `A=1 python3 train.py …`
                self._command(line)
            elif assigned := _ASSIGNED.fullmatch(line):
                self._assign(*assigned.groups())
            elif (source := _SOURCE.fullmatch(line)) and self.read_scripts < MOST_SCRIPTS:
                self._source(path, source[1])
            elif not line.lstrip().startswith("#"):
                self._command(line)

    def words(self) -> Iterator[str]:
        """The program, its own flags, and those of the arrays that the script hands it."""
        for command in self.commands:
            tail = command[_started(command) :]
            yield from (word for word in _split(self.expand(tail)) if not _PASSED_ON.fullmatch(word))
        for name in self.used or self.arrays:
            # expanded late: a variable may be set between the array and its use, in the other branch of an if
            yield from _split(self.expand(" ".join(self.arrays.get(name, ()))))

    def expand(self, text: str) -> str:
        """`text` with the variables that are plain, defaults and sums."""
        for _ in range(8):  # a variable may name another; a cycle ends
            before = text
            text = _PLAIN.sub(lambda match: self.variables.get(match[1] or match[2], match[0]), text)
            text = _DEFAULT.sub(lambda match: self.variables.get(match[1], match[2]), text)
            text = _SUM.sub(self._sum, text)
            text = _SEQUENCE.sub(_sequence, text)
            if text == before:
                break
        return text

    def _sum(self, match: re.Match[str]) -> str:
        names = re.sub(r"[A-Za-z_]\w*", lambda name: self.variables.get(name[0], name[0]), match[1])
        value = _number(names)
        return match[0] if value is None else str(value)

    def _array(self, array: re.Match[str], line: str, lines: Iterator[str]) -> None:
        name, more = array.groups()
        body = self.arrays.setdefault(name, [])
        if not more:
            body.clear()
        rest = _uncommented(line[array.end() :])
        while not _closes(rest):
            body.append(rest)
            rest = _uncommented(next(lines, ")"))
        body.append(rest.rstrip().removesuffix(")"))

    def _write(self, writes: re.Match[str], lines: Iterator[str]) -> None:
        path, quote, end = writes.groups()
        body = "\n".join(itertools.takewhile(lambda line: line.strip() != end, lines))
        self.files[_path(self.expand(path))] = body if quote else self.expand(body)

    def _assign(self, name: str, value: str) -> None:
        if name in self.fixed:
            return
        plain = self.expand(" ".join(_split(_uncommented(value))))
        if "$" in plain or "`" in plain:  # what another program says
            self.variables.pop(name, None)
        else:
            self.variables[name] = plain

    def _source(self, path: Path, named: str) -> None:
        text = self.expand(_uncommented(named)).strip().strip("\"'")
        name = re.sub(r"^\$\{?\w+\}?/", "", text)  # the folder of the script, as the shell finds it
        others = (path.parent / name, path.parent.parent / name, Path(name))
        script = next((other for other in others if other.is_file()), None)
        if script is not None:
            self.read(script)

    def _command(self, line: str) -> None:
        self.used += [name for name in _USED.findall(line) if name not in self.used]
        if _starts_training(line):
            self.commands.append(_first_command(_uncommented(line)))


def _path(word: str) -> str:
    """A path of the script, or the name of the variable that holds it."""
    variable = _PLAIN.fullmatch(word)
    return variable[1] or variable[2] if variable else word


def _sequence(match: re.Match[str]) -> str:
    first, step, last = int(match[1]), int(match[2] or 1), int(match[3])
    return " ".join(map(str, range(first, last + 1, step)))


def _starts_training(line: str) -> bool:
    """Whether the line is a command that names the training program, rather than a variable that does."""
    return any(_ENTRY.fullmatch(word) and "=" not in word for word in _split(line)[1:])


def _first_command(line: str) -> str:
    """`line` up to a pipe, a redirection, or another command behind the one that starts the training."""
    for match in _OPERATOR.finditer(line, _started(line)):
        if not match["quoted"]:
            return line[: match.start()]
    return line


def _started(command: str) -> int:
    match = _ENTRY.search(command)
    return match.start() if match else 0


def _closes(line: str) -> bool:
    """Whether the array ends with this line: a sum and a command have brackets of their own."""
    return re.sub(r"\$\(\([^()]*\)\)|\$\([^()]*\)", "", line).rstrip().endswith(")")


def _uncommented(line: str) -> str:
    """`line` without a comment at its end."""
    return re.sub(r"(^|\s)#.*$", "", line)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote: a text over several lines, which holds no flags
        return text.split()


def _number(text: str) -> int | None:
    """The value of a sum or product of integers; None: it is none."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return left // right
    raise ValueError(ast.dump(node))


def variables(given: Iterable[str]) -> dict[str, str]:
    """Of `NAME=VALUE` each. ConfigError."""
    values = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--var: found {text!r}, expected NAME=VALUE.")
        values[name] = value
    return values
