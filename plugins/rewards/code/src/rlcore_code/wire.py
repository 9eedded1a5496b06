"""What crosses between the judge's process and the program's: plain data, as JSON that is checked strictly.

None, bool, float, str and int up to 53 bits stand for themselves; all else is a list that begins with a tag.
Whoever reads gets exactly the types of Python's own, never a subclass of them, whatever the writer claims.
Objects that are no plain data cross as numbers: `["mine", 3]` is an object of the writer, `["yours", 3]` one
of the reader. Runs in the jail: only the standard library.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False  # as type checkers read it; the import of `typing` costs more than all of this

DEPTH = 100
"""How deep data may be nested."""

_EXACT = 1 << 53
_TYPES: dict[str, Any] = {
    kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_SEQUENCES: dict[str, Any] = {kind: _TYPES[kind] for kind in ("list", "tuple", "set", "frozenset")}
_TAGS = {kind: tag for tag, kind in _SEQUENCES.items()}


class WireError(Exception):
    """What came is not of this form, or what should go has none."""


class Line:
    """Two pipes, one to read and one to write, with one line of JSON for each message.

    `read_limit` and `write_limit`: bytes of a message.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self.read_limit = self.write_limit = 1 << 30
        self._rest = b""

    def send(self, message: Any) -> None:
        """OSError where the other side is gone, WireError for a message that is too long."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(data) > self.write_limit:
            raise WireError("the message is too long")
        while data:
            data = data[os.write(self._write, data) :]

    def receive(self) -> Any:
        """The next message. WireError where there is none, or one that is too long, or no JSON."""
        data, parts = self._rest, []
        size = len(data)
        while b"\n" not in data:
            parts.append(data)
            data = os.read(self._read, 65536)
            size += len(data)
            if not data or size > self.read_limit:
                raise WireError("the message does not end")
        last, _, self._rest = data.partition(b"\n")
        try:
            return json.loads(b"".join([*parts, last]))
        except (ValueError, RecursionError) as error:
            raise WireError("the message is no JSON") from error


def encode(value: Any, refer: Callable[[Any], Any], depth: int = 0) -> Any:
    """The JSON of `value`; a subclass of a plain type crosses as that, and anything else as `refer` says."""
    if depth > DEPTH:
        raise WireError("the data are nested too deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, (int, _of("numbers", "Integral"))):
        number = int(value)
        return number if -_EXACT < number < _EXACT else ["int", hex(number)]
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, tuple(_TAGS)):
        kind = next(kind for kind in _TAGS if isinstance(value, kind))
        return [_TAGS[kind], *[encode(item, refer, depth + 1) for item in kind.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", *[[encode(one, refer, depth + 1) for one in pair] for pair in dict.items(value)]]
    encoded = _encoded_rarely(value)
    return refer(value) if encoded is None else encoded


def _encoded_rarely(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, _of("decimal", "Decimal")):
        return ["Decimal", str(value)]
    if isinstance(value, _of("fractions", "Fraction")):
        return ["Fraction", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, _of("numbers", "Real")):
        return float(value)
    names = [name for name, kind in _TYPES.items() if kind is value]
    return ["type", *names] if names else None


def _of(module: str, name: str) -> Any:
    """A class that no value can be of before its module was imported."""
    return getattr(sys.modules.get(module), name, ())


def decode(data: Any, resolve: Callable[[str, Any], Any], depth: int = 0) -> Any:
    """What `encode` made the JSON of; `resolve` is given the tag and the rest of what is not plain data.

    Raises WireError for anything else.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if depth > DEPTH or not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise WireError("no plain data")
    tag, *rest = data
    try:
        if tag in _SEQUENCES:
            return _SEQUENCES[tag]([decode(item, resolve, depth + 1) for item in rest])
        if tag == "dict":
            return {decode(key, resolve, depth + 1): decode(item, resolve, depth + 1) for key, item in rest}
        if tag in _SCALARS:
            return _SCALARS[tag](*rest)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:  # such as a list as a key
        raise WireError("no plain data") from error
    return resolve(tag, rest)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    return int(_text(value), 16)


def _real(value: Any) -> float:
    if not isinstance(value, float):
        raise TypeError
    return value


def _decimal(text: Any) -> Any:
    from decimal import Decimal

    return Decimal(_text(text))


def _fraction(above: Any, below: Any) -> Any:
    from fractions import Fraction

    return Fraction(_whole(above), _whole(below))


_SCALARS: dict[str, Callable[..., Any]] = {
    "int": _whole,
    "bytes": lambda text: bytes.fromhex(_text(text)),
    "bytearray": lambda text: bytearray.fromhex(_text(text)),
    "complex": lambda real, imag: complex(_real(real), _real(imag)),
    "Decimal": _decimal,
    "Fraction": _fraction,
    "type": lambda name: _TYPES[_text(name)],
}
