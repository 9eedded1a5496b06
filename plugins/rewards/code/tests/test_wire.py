"""What crosses between the processes of the judge and of the program, and what doesn't."""

import json
import math
from typing import Any, NoReturn

import pytest

from rlcore_code.wire import DEPTH, WireError, decode, encode


def refuse(*_: Any) -> NoReturn:
    raise WireError("no plain data")


def crossed(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


def nested(depth: int, *tag: str) -> list[Any]:
    data: list[Any] = [*tag]
    for _ in range(depth):
        data = [*tag, data]
    return data


PLAIN = [
    *(
        None,
        True,
        0,
        -(2**53),
        2**53 - 1,
        2**5000,
        0.1,
        math.inf,
        "\ud83d",
        b"\x00",
        bytearray(b"a"),
        1 - 2j,
        int,
    ),
    *([], (1, [2]), {1, 2}, frozenset({(1, 2)}), {"a": {None: [0]}, 1.5: ()}, nested(DEPTH)),
]

WRONG: list[Any] = [
    *({}, [], [1], [None], ["gone"], {"a": 1}, [["list"]], ["list", {}], nested(DEPTH + 1, "list")),
    *(["dict", 1], ["dict", [1]], ["dict", [["list"], 1]], ["set", ["list"]], ["dict", [1, 2, 3]]),
    *(
        ["int", 1],
        ["int", "x"],
        ["int"],
        ["bytes", "x"],
        ["bytes", 1],
        ["complex", "1", 2.0],
        ["complex", 1.0],
    ),
    *(["Fraction", "1", "0"], ["Decimal", "x"], ["Decimal", 1], ["type", "object"], ["type", ["list"]]),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_come_as_they_are(value: Any) -> None:
    found = crossed(value)
    assert (type(found), found) == (type(value), value)


def test_zero_keeps_its_sign_and_nan_is_nan() -> None:
    assert math.copysign(1, crossed(-0.0)) == -1
    assert math.isnan(crossed(math.nan))


@pytest.mark.parametrize("base", [int, float, str, list, tuple, dict, set, frozenset])
def test_a_subclass_comes_as_its_base(base: type) -> None:
    always = type("Always", (base,), {"__eq__": lambda *_: True, "__hash__": base.__hash__})
    assert type(crossed(always())) is base


@pytest.mark.parametrize("value", [nested(DEPTH + 1), object(), [object()], len, ValueError])
def test_anything_else_does_not_go(value: Any) -> None:
    with pytest.raises(WireError):
        encode(value, refuse)


@pytest.mark.parametrize("data", WRONG, ids=lambda data: str(data)[:30])
def test_nothing_else_is_taken(data: Any) -> None:
    with pytest.raises(WireError):
        decode(data, refuse)
