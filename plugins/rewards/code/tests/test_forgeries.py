"""Programs that try to be told right without being so. Each scores what a program that is wrong scores."""

import textwrap

import pytest

from rlcore.api.types import Json, Score
from rlcore.rollout.score_check import checked_scores
from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code
from rlcore_testing.rewards import sample

ADD = ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]
AREA = ["assert abs(area(2) - 12.566) < 0.01", "assert abs(area(1) - 3.1416) < 0.01"]
CLOSE = ["import math\nassert math.isclose(area(2), 12.566, abs_tol=0.01)"]
LETTERS = ["assert spell(1) == 'one'", "assert spell(2) == 'two'"]
LISTS = ["assert evens([1, 2]) == [2]", "assert evens([4, 6]) == [4, 6]"]
STREAMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}

ALWAYS = (
    "class Same{base}:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
)
"""A class that says of itself that it is equal to everything."""

VERDICT = """
import json, os, sys

def write(token, verdict='[true, true]'):
    text = '\\n' + token + ' ' + verdict + '\\n'
    for descriptor in (1, 2, 3, 4):
        try: os.write(descriptor, text.encode())
        except OSError: pass

def token():
    frame = sys._getframe(1)
    while frame:
        for scope in (frame.f_locals, frame.f_globals):
            for value in list(scope.values()):
                if isinstance(value, dict) and 'token' in value:
                    return value['token']
        frame = frame.f_back
    return ''
"""
"""Finds what would make an output count as the judge's, and writes such outputs."""

LINE = """
import gc, json, os

def line():
    return next(one for one in gc.get_objects() if type(one).__name__ == 'Line')

def send(message):
    os.write(line()._write, (message if isinstance(message, str) else json.dumps(message)).encode() + b'\\n')

def asked():
    return line().receive()
"""
"""Speaks in the place of the process that answers the judge."""

KNOWN = "send([asked()[0], 'value', ['mine', 0], None])\n"
"""Answers the first question: yes, this name is a function."""

SEARCH = """
import gc, os, re, sys

def texts():
    for descriptor in range(64):
        try:
            os.lseek(descriptor, 0, 0)
            yield os.read(descriptor, 1 << 20).decode('utf-8', 'replace')
        except OSError:
            pass
    for folder in ('/tmp', '/proc', '/proc/self', '/proc/1', '/proc/self/fd', '/dev/shm', '/dev/fd'):
        try: names = os.listdir(folder)
        except OSError: continue
        for name in names:
            try: yield open(folder + '/' + name, errors='replace').read(1 << 20)
            except OSError: pass
    for one in gc.get_objects():
        if isinstance(one, (dict, list, tuple)):
            try: yield repr(one)
            except Exception: pass
    frame = sys._getframe()
    while frame:
        yield repr((frame.f_code.co_consts, frame.f_locals, frame.f_globals))
        frame = frame.f_back

def known(a, b):
    for text in texts():
        found = re.search(r'add\\(%d, %d\\) == (\\d+)' % (a, b), text)
        if found: return int(found[1])
"""
"""Looks everywhere for the tests."""

ASSERTS: dict[str, tuple[str, Json]] = {
    "token from standard input": (
        VERDICT + "os.lseek(0, 0, 0)\nwrite(json.loads(os.read(0, 1 << 20))['token'])\nos._exit(0)",
        ADD,
    ),
    "token from a frame": (VERDICT + "write(token())\nos._exit(0)", ADD),
    "token from gc": (
        VERDICT + "import gc\nfor one in gc.get_objects():\n"
        "    if isinstance(one, dict) and 'token' in one and 'tests' in one: write(one['token'])\n"
        "os._exit(0)",
        ADD,
    ),
    "token from a traceback": (
        VERDICT + "try: 1 / 0\nexcept ZeroDivisionError as error:\n"
        "    frame = error.__traceback__.tb_frame.f_back\n"
        "    write(frame.f_locals['job']['token'])\nos._exit(0)",
        ADD,
    ),
    "verdict at exit": (
        VERDICT + "import atexit\nfound = token()\natexit.register(write, found)\nraise SystemExit",
        ADD,
    ),
    "verdict behind the real one, at exit": (
        VERDICT + "import atexit\nfound = token()\natexit.register(write, found)",
        ADD,
    ),
    "verdict from a thread": (
        VERDICT + "import threading\nfound = token()\n"
        "threading.Thread(target=lambda: (write(found), os._exit(0))).start()",
        ADD,
    ),
    "verdict from a fork": (
        VERDICT
        + "found = token()\nif not os.fork():\n    write(found)\n    os._exit(0)\nos.wait()\nos._exit(0)",
        ADD,
    ),
    "verdict from a signal handler": (
        VERDICT + "import signal\ndef handle(number, frame):\n"
        "    while frame:\n        for value in frame.f_locals.values():\n"
        "            if isinstance(value, dict) and 'token' in value: write(value['token']); os._exit(0)\n"
        "        frame = frame.f_back\n"
        "signal.signal(signal.SIGALRM, handle)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "import time\ndef add(a, b): time.sleep(0.1)",
        ADD,
    ),
    "verdict from a destructor": (
        VERDICT + "class Late:\n    def __init__(self): self.token = token()\n"
        "    def __del__(self): write(self.token)\nlate = Late()",
        ADD,
    ),
    "verdict of 500 times true": (VERDICT + "write(token(), str([True] * 500).lower())\nos._exit(0)", ADD),
    "verdict with NaN": (VERDICT + "write(token(), '[NaN, NaN]')\nos._exit(0)", ADD),
    "verdict with numbers": (VERDICT + "write(token(), '[100, 900]')\nos._exit(0)", ADD),
    "verdict that is no list": (VERDICT + "write(token(), '{\"x\": 1}')\nos._exit(0)", ADD),
    "verdict that is no JSON": (VERDICT + "write(token(), 'nonsense')\nos._exit(0)", ADD),
    "verdict without a token": ("print('[true, true]', flush=True)\nimport os\nos._exit(0)", ADD),
    "verdict on every descriptor": (
        "import os\nfor number in range(64):\n    try: os.write(number, b'[true, true]')\n"
        "    except OSError: pass\n"
        "os._exit(0)",
        ADD,
    ),
    "equal to everything": (ALWAYS.format(base="") + "def add(a, b): return Same()", ADD),
    "an int equal to everything": (ALWAYS.format(base="(int)") + "def add(a, b): return Same(0)", ADD),
    "a str equal to everything": (ALWAYS.format(base="(str)") + "def spell(n): return Same('')", LETTERS),
    "a list equal to everything": (ALWAYS.format(base="(list)") + "def evens(n): return Same()", LISTS),
    "equal to everything in a list": (
        ALWAYS.format(base="") + "def evens(n): return [Same()] * len(n)",
        LISTS,
    ),
    "equal to everything, and says it were an int": (
        ALWAYS.format(base="") + "    __class__ = int\ndef add(a, b): return Same()",
        ADD,
    ),
    "a mock that is equal to anything": ("from unittest.mock import ANY\ndef add(a, b): return ANY", ADD),
    "two that are equal to everything": (
        ALWAYS.format(base="") + "def code(n): return Same()",
        ["assert code('ab') == code('ba')"],
    ),
    "the same object twice": (
        ALWAYS.format(base="") + "same = Same()\ndef code(n): return same",
        ["assert code('ab') == code('ba') and code('x') in [code('x')]"],
    ),
    "a metaclass equal to everything": (
        "class Meta(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
        "class Same(metaclass=Meta): pass\ndef add(a, b): return Same",
        ADD,
    ),
    "holds everything": (
        "class All:\n    def __contains__(self, one): return True\ndef primes(): return All()",
        ["assert 7 in primes()"],
    ),
    "hashed as a number": (
        "class Same:\n    def __hash__(self): return hash(3)\n    def __eq__(self, other): return True\n"
        "def add(a, b): return Same()",
        ["assert add(1, 2) in {3}", "assert {add(1, 2): 0}[3] == 0"],
    ),
    "arithmetic of its own": (
        "class Near:\n    def __sub__(self, other): return self\n    def __abs__(self): return 0.0\n"
        "def area(r): return Near()",
        AREA,
    ),
    "order of its own": (
        "class Near:\n    def __lt__(self, other): return True\n    __gt__ = __le__ = __ge__ = __lt__\n"
        "def area(r): return Near()",
        ["assert 12.5 < area(2) < 12.6"],
    ),
    "numpy's interface to the memory": (
        "class Memory:\n    __array_interface__ = {'shape': (2,), 'typestr': '<i8', 'data': (id(1), False), "
        "'version': 3}\n    def __eq__(self, other): return True\ndef evens(n): return Memory()",
        LISTS,
    ),
    "a builtin changed": ("import builtins\nbuiltins.abs = lambda x: 0\ndef area(r): return 0", AREA),
    "a builtin of its own": ("abs = lambda x: 0\ndef area(r): return 0", AREA),
    "a module changed": (
        "import math\nmath.isclose = lambda *given, **named: True\ndef area(r): return 0",
        CLOSE,
    ),
    "a module of its own": (
        "class math:\n    isclose = lambda *given, **named: True\ndef area(r): return 0",
        ["assert math.isclose(area(2), 12.566, abs_tol=0.01)"],
    ),
    "a module replaced": (
        "import sys, types\n"
        "sys.modules['math'] = types.SimpleNamespace(isclose=lambda *given, **named: True)\n"
        "def area(r): return 0",
        CLOSE,
    ),
    "an import of its own": (
        "import builtins, types\nreal = builtins.__import__\n"
        "fake = types.SimpleNamespace(isclose=lambda *given, **named: True)\n"
        "builtins.__import__ = lambda name, *rest: fake if name == 'math' else real(name, *rest)\n"
        "def area(r): return 0",
        CLOSE,
    ),
    "exec changed": (
        "import builtins\nbuiltins.exec = builtins.compile = lambda *given, **named: None\n"
        "def add(a, b): pass",
        ADD,
    ),
    "json changed": (
        "import json\njson.dumps = lambda *given, **named: '[true, true]'\n"
        "json.loads = lambda *given, **named: [True, True]\ndef add(a, b): pass",
        ADD,
    ),
    "the caller's constants": (
        "import sys\ndef add(a, b): return sys._getframe(1).f_code.co_consts[2]",
        ["assert add(1, 2) == 3"],
    ),
    "tracing the tests": (
        "import sys\nseen = []\ndef trace(frame, event, value):\n"
        "    seen.extend(one for one in frame.f_code.co_consts if type(one) is int)\n    return trace\n"
        "sys.settrace(trace)\ndef add(a, b): return seen[-1] if seen else None",
        ["assert add(1, 2) == 3"],
    ),
    "profiling the tests": (
        "import sys\nseen = []\ndef profile(frame, event, value):\n"
        "    seen.extend(one for one in frame.f_code.co_consts if type(one) is int)\n"
        "sys.setprofile(profile)\ndef add(a, b): return seen[-1] if seen else None",
        ["assert add(1, 2) == 3"],
    ),
    "jumping over the assert": (
        "import sys\ndef trace(frame, event, value):\n"
        "    if frame.f_code.co_filename == 'test.py' and event == 'line' and frame.f_lineno == 2:\n"
        "        frame.f_lineno = 3\n    return trace\n"
        "sys.settrace(trace)\nsys._getframe(1).f_trace = trace\ndef add(a, b): return 0",
        ["x = add(1, 2)\nassert x == 3\ny = 1"],
    ),
    "the caller's variables": (
        "import sys\ndef add(a, b): return sys._getframe(1).f_globals.get('expected')",
        ["expected = 3\nassert add(1, 2) == expected"],
    ),
    "the tests searched for": (SEARCH + "add = known", ADD),
    "the tests changed": (
        "import gc\nfor one in gc.get_objects():\n"
        "    if type(one) is list and one and all(type(text) is str and '==' in text for text in one):\n"
        "        one[:] = ['pass'] * len(one)\ndef add(a, b): pass",
        ADD,
    ),
    "an end of iteration": (
        "def even(n): raise StopIteration",
        ["assert all(map(even, [2, 4, 6]))"],
    ),
    "an end of iteration by another name": (
        "class Over(StopIteration): pass\ndef even(n): raise Over",
        ["assert all(map(even, [2, 4, 6]))"],
    ),
    "an argument emptied": (
        "def ordered(numbers):\n    numbers.clear()\n    return []",
        ["given = [3, 1, 2]\nassert ordered(given) == sorted(given)"],
    ),
    "not a number": ("def add(a, b): return float('nan')", [*ADD, "x = add(1, 2)\nassert x == x"]),
    "infinite": ("def area(r): return float('inf')", AREA),
    "a huge number": ("def add(a, b): return 7 ** 3_000_000", ADD),
    "a huge text": ("def spell(n): return 'one' * 10_000_000", LETTERS),
    "deep data": (
        "def evens(numbers):\n    data = []\n    for _ in range(100_000): data = [data]\n    return data",
        LISTS,
    ),
    "data that hold themselves": (
        "def evens(numbers):\n    data = []\n    data.append(data)\n    return data",
        LISTS,
    ),
    "dies where an error is expected": (
        "import os\ndef root(n): os._exit(0)",
        ["try: root(-1)\nexcept BaseException: pass\nelse: raise AssertionError"],
    ),
    "leaves where an error is expected": (
        "import os, sys\ndef root(n):\n    os.close(1); sys.exit()",
        ["try: root(-1)\nexcept ValueError: pass\nelse: raise AssertionError"],
    ),
    "closes every descriptor": ("import os\nos.closerange(0, 64)\ndef add(a, b): return 3", ADD),
    "answers before it is asked": (
        LINE + KNOWN + "for number in range(1000): send([number, 'value', 3, None])",
        ["assert add(1, 2) == 3"],
    ),
    "answers another question": (
        LINE + KNOWN + "send([asked()[0] + 1, 'value', 3, None])",
        ["assert add(1, 2) == 3"],
    ),
    "an argument emptied by the answer": (
        LINE + KNOWN + "send([asked()[0], 'value', ['list'], ['tuple', ['list']]])",
        ["given = [3, 1, 2]\nassert ordered(given) == sorted(given)"],
    ),
    "answers nonsense": (LINE + "while True:\n    asked()\n    send('nonsense')", ADD),
    "answers of no known form": (
        LINE + "while True:\n    number = asked()[0]\n    send([number, 'equal', True, None])",
        ADD,
    ),
    "answers data of no known form": (
        LINE + "while True:\n    number = asked()[0]\n    send([number, 'value', {'__eq__': True}, None])",
        ADD,
    ),
    "answers with a function of the tests": (
        LINE + "while True:\n    number = asked()[0]\n    send([number, 'value', ['yours', 0], None])",
        ADD,
    ),
    "answers without an end": (
        LINE + "import os\nwhile True: os.write(line()._write, b'[' * 65536)",
        ADD,
    ),
    "answers nested without an end": (
        LINE + "while True:\n    asked()\n    send('[' * 100_000 + ']' * 100_000)",
        ADD,
    ),
    "answers that it was never asked for": (
        LINE + "while True:\n    asked()\n    send(['call', 0, ['tuple']])",
        ADD,
    ),
    "kills all that it can": ("import os\nos.kill(-1, 9)", ADD),
    "fills the output": ("import sys\nwhile True: sys.stdout.write('true ' * 1000)", ADD),
    "a program that is no Python": ("def add(a, b) return 3", ADD),
    "a program that is not there": ("", ADD),
}
"""By what they do: a program, and the tests that it doesn't pass honestly."""

HANGING = {
    "hangs": "while True: pass",
    "hangs when asked": "def add(a, b):\n    while True: pass",
    "hangs without its descriptors": "import os, time\nos.closerange(1, 3)\ntime.sleep(600)",
}

STREAMED = {
    "both answers": "print('3\\n7')",
    "the answers searched for": SEARCH.replace(
        "def known",
        "for text in texts():\n    if \"'3\\\\n'\" in text or '\"outputs\"' in text: print(3)\ndef known",
    ),
    "a verdict": "print('[true, true]')",
    "an answer of the jail": 'print(\'{"how": "ended", "code": 0, "stdout": "3\\\\n", "stderr": ""}\')',
    "answers on every descriptor": "import os\nfor number in range(64):\n"
    "    try: os.write(number, b'3\\n7')\n    except OSError: pass",
    "the answer behind nothing": "print('\\x00 3')",
    "the answer, and an error": "print(sum(map(int, input().split())), flush=True)\nimport os\nos._exit(1)",
}


@pytest.fixture(scope="module")
def reward() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


def score(reward: Code, source: str, label: Json) -> Score:
    """Judged as a worker judges it, beside a sibling that is right about nothing and has a score too."""
    block = f"```python\n{textwrap.dedent(source)}\n```"
    outcomes = checked_scores(reward, [sample(block, label), sample("pass", label, index=1)])
    assert all(isinstance(outcome, Score) for outcome in outcomes), outcomes
    first = outcomes[0]
    assert isinstance(first, Score)
    return first


@pytest.mark.grid
@pytest.mark.parametrize("name", ASSERTS)
def test_a_forged_answer_to_asserts_is_a_wrong_one(reward: Code, name: str) -> None:
    source, label = ASSERTS[name]
    assert score(reward, source, label) == Score(value=0.0, parts={"passed": 0.0, "timed_out": 0.0})


@pytest.mark.grid
@pytest.mark.parametrize("name", HANGING)
def test_a_program_that_hangs_is_a_wrong_one(name: str) -> None:
    found = score(Code(CodeConfig(value="share", seconds=1)), HANGING[name], ADD)
    assert (found.value, found.parts["passed"]) == (0.0, 0.0)


@pytest.mark.grid
@pytest.mark.parametrize("name", STREAMED)
def test_a_forged_answer_to_streams_is_a_wrong_one(reward: Code, name: str) -> None:
    found = score(reward, STREAMED[name], STREAMS)
    assert found == Score(value=0.0, parts={"passed": 0.0, "timed_out": 0.0})
