"""Tests of the form `assert`: what they may ask of a program, which runs in another process."""

from collections.abc import Sequence

import pytest

from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code
from rlcore_testing.rewards import sample

STACK = """
class Empty(ValueError): pass
class Stack:
    def __init__(self, items=()): self.items, self.seen = list(items), {}
    def push(self, one): self.items.append(one)
    def pop(self):
        if not self.items: raise Empty("nothing left")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __bool__(self): return bool(self.items)
    def __getitem__(self, place): return self.items[place]
    def __setitem__(self, place, one): self.items[place] = one
    def __str__(self): return f"Stack{self.items}"
    def __float__(self): return 0.5
    __array_interface__ = {}
def top(stack): return stack.items[-1]
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def total(node): return node.value + total(node.next) if node else 0
"""

PLAIN = """
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
Pair = namedtuple("Pair", "a b")
class Color(IntEnum): RED = 1
def data(): return [None, True, 0.1, -0.0, 2**5000, -(2**60), "ä\\ud83d", *more()]
def more(): return [b"x", (1,), {1}, frozenset({2}), {3: [4]}, 1j]
def counted(text): return Counter(text)
def ordered(): return OrderedDict(a=1)
def pair(): return Pair(1, 2)
def red(): return Color.RED
def half(): return Fraction(1, 2)
def price(): return Decimal("2.50")
def kind(x): return type(x)
def queue(): return deque([1, 2])
"""

WORKS: dict[str, tuple[str, Sequence[str]]] = {
    "functions": (
        "def add(a, b=2, *more, c=0): return a + b + c + sum(more)",
        ["assert add(1) == 3", "assert add(1, 2, 3, c=4) == 10", "assert add(*[1], **{'b': 5}) == 6"],
    ),
    "plain data": (
        PLAIN,
        [
            "import math",
            "found = data()\nassert found[:3] == [None, True, 0.1] and math.copysign(1, found[3]) == -1",
            "assert found[4:7] == [2**5000, -(2**60), 'ä\\ud83d']",
            "assert found[7:] == [b'x', (1,), {1}, frozenset({2}), {3: [4]}, 1j]",
            "assert [type(one) for one in found[7:10]] == [bytes, tuple, set]",
            "assert counted('aab') == {'a': 2, 'b': 1} and ordered() == {'a': 1} and pair() == (1, 2)",
            "from fractions import Fraction\nassert red() == 1 and half() == Fraction(1, 2) == 0.5",
            "from decimal import Decimal\nassert price() == Decimal('2.5')",
            "assert kind(2**70) is int and kind((1,)) is tuple and list(queue()) == [1, 2]",
        ],
    ),
    "a check with the function as its argument": (
        "def add(a, b): return a + b",
        [
            "def check(candidate):\n    for a in range(50):\n        assert candidate(a, 1) == a + 1",
            "check(add)",
        ],
    ),
    "objects": (
        STACK,
        [
            "stack = Stack([1])\nstack.push(2)\nassert len(stack) == 2 and stack and stack[0] == 1",
            "stack[0] = 5\nassert list(stack) == [5, 2] and 5 in stack and str(stack) == 'Stack[5, 2]'",
            "assert isinstance(stack, Stack) and not isinstance(3, Stack) and top(stack) == 2",
            "assert not hasattr(stack, '__array_interface__')",
            "stack.seen = {'a': 1}\nassert stack.seen['a'] == 1 and not hasattr(stack, 'gone')",
            "del stack.seen\nassert not hasattr(stack, 'seen') and float(stack) == 0.5",
            "assert [stack.pop(), stack.pop()] == [2, 5] and not stack",
            "try: stack.pop()\nexcept Empty as error: assert str(error) == 'nothing left'\n"
            "else: assert False",
            "try: Stack().pop()\nexcept ValueError: pass",
            "first = Node(1)\nfirst.next = Node(2, Node(3))\n"
            "assert total(first) == 6 and first.next.value == 2",
            "class Checks:\n    made = Stack([7])\n    size = len(made)\nassert Checks.size == 1",
        ],
    ),
    "errors": (
        "def root(n):\n    if n < 0: raise ValueError('negative', n)\n    return {4: 2}[n]",
        [
            "try: root(-1)\nexcept ValueError as error: assert error.args == ('negative', -1)\n"
            "else: assert False",
            "import unittest\nwith unittest.TestCase().assertRaises(KeyError): root(3)",
        ],
    ),
    "iterators": (
        "def count(n):\n    for i in range(n): yield i",
        ["assert list(count(3)) == [0, 1, 2]", "assert next(count(1)) == 0 and sum(count(4)) == 6"],
    ),
    "functions of the tests": (
        "def apply(f, *given): return f(*given)\ndef adder(n): return lambda m: n + m\n"
        "def safe(f):\n    try: return f()\n    except ZeroDivisionError: return 'inf'",
        [
            "assert apply(lambda a, b: a * b, 3, 4) == 12 and apply(len, 'abc') == 3",
            "assert adder(3)(4) == 7 and apply(adder(1), 1) == 2 and apply(int, '7') == 7",
            "assert safe(lambda: 1 / 0) == 'inf'",
            "assert apply(lambda n: apply(lambda m: m + n, 1), 2) == 3",
        ],
    ),
    "changes in place": (
        "def sort(numbers): numbers.sort()\ndef add(pairs): pairs['b'] = 2\ndef drop(ones): ones.discard(1)",
        [
            "given = [3, 1, 2]\nassert sort(given) is None and given == [1, 2, 3]",
            "given = {'a': 1}\nadd(given)\nassert given == {'a': 1, 'b': 2}",
            "given = {1, 2}\ndrop(given)\nassert given == {2}",
        ],
    ),
    "a function named as a builtin is": (
        "def sum(a, b): return a * b",
        ["assert sum(10, 15) == 150", "assert sum(1, 2) == 2"],
    ),
    "a module without an import": (
        "import math\ndef f(): return 0.1 + 0.2",
        ["assert math.isclose(f(), 0.3)"],
    ),
    "what the program prints": (
        "print('[false]')\ndef f():\n    print('[false]')\n    return 1",
        ["assert f() == 1"],
    ),
    "what the tests print": ("def f(): return 1", ["print('[false]')\nassert f() == 1"]),
    "variables of the program": (
        "calls = 0\ndef f():\n    global calls\n    calls += 1",
        ["assert calls == 0\nf()", "assert calls == 1"],
    ),
}


@pytest.fixture(scope="module")
def reward() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


@pytest.mark.parametrize("name", WORKS)
def test_what_a_test_may_ask_of_a_program(reward: Code, name: str) -> None:
    source, tests = WORKS[name]
    [score] = reward.score([sample(source, list(tests))])
    assert score.value == 1.0


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 4",
        "raise SystemExit",
        "assert missing(1) == 1",
        "assert add(1, 2 == 3",
        "assert add(object(), 2)",
        "import nothing_of_this_name",
    ],
)
def test_one_test_that_fails_leaves_the_others(reward: Code, test: str) -> None:
    right = "assert add(1, 2) == 3"
    [score] = reward.score([sample("def add(a, b): return a + b", [right, test, right])])
    assert score.value == pytest.approx(2 / 3)


def test_a_test_knows_no_name_of_a_program_that_it_does_not_use(reward: Code) -> None:
    """What the program is asked for, as it can see it itself."""
    spy = (
        "import gc\nclass Names(dict): pass\nasked = []\n"
        "program = next(one for one in gc.get_objects() if type(one).__name__ == 'Program')\n"
        "real = program._asks['name']\n"
        "program._asks['name'] = lambda name: (asked.append(name), real(name))[1]\n"
        "def names(n): return asked"
    )
    tests = [
        "expected, secret = ['names'], 7\ndef check(candidate):\n    assert candidate(secret) == expected",
        "check(names)",
    ]
    [score] = reward.score([sample(spy, tests)])
    assert score.value == 1.0
