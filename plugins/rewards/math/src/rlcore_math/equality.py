"""Whether two formulas are equal: `Formula` is a label or an answer that has been read."""

import cmath
import logging
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, FiniteSet, Float, Interval, Tuple, Union

from rlcore_math.notation import TEXT, latex, without_unit, words
from rlcore_math.places import has_prose

_BOXED = (LatexExtractionConfig(boxed_match_priority=0),)
_RELATION = re.compile(
    r"\\(?:neq?|leq?|geq?|leqslant|geqslant|lt|gt|not|sim|simeq|cong|equiv)(?![a-zA-Z])|[<>~]|!="
)
_ABOUT = re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])|\\dots|\\ldots|\\cdots|\.\.\.")
_BASE = re.compile(r"([0-9A-F]+)_\{?(?:\\text\{)?(\w+)\}*")

# It warns, once a process, that its time limits are off.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


@dataclass(frozen=True)
class Formula:
    """A formula in LaTeX or a plain number, as people write it."""

    text: str

    @cached_property
    def latex(self) -> str:
        return latex(self.text)

    @cached_property
    def words(self) -> str | None:
        return words(self.latex)

    @cached_property
    def parsed(self) -> list[Any]:
        """What math-verify makes of it; empty: nothing."""
        if not _balanced(self.latex):
            return []
        return list(
            parse(rf"\boxed{{{without_unit(self.latex)}}}", extraction_config=_BOXED, parsing_timeout=None)
        )

    @property
    def is_text(self) -> bool:
        r"""Whether it is LaTeX without prose, such as `A \cap B`, which can be compared sign by sign."""
        signs = TEXT.sub("", self.latex)
        is_formula = "\\" in signs and re.search(r"\w", signs) and not has_prose(signs)
        return bool(is_formula) and _balanced(self.latex)

    @property
    def value(self) -> Any:
        """The first expression; None where there is only text."""
        return next((part for part in self.parsed if not isinstance(part, str)), None)


def equal(label: Formula, answer: Formula, decimals: int) -> bool:
    """Whether an answer is equal to the label. Numbers agree in `decimals`; below 0.1, in as many digits."""
    if label.words is not None or answer.words is not None:
        return label.words == answer.words or _letter(label, answer)
    if _compact(label.latex) == _compact(answer.latex):
        return True
    if _ABOUT.search(answer.latex) and not _ABOUT.search(label.latex):
        exact = _ABOUT.split(answer.latex)[0].strip()
        exact = exact.rpartition("=")[2].strip() if "=" in exact else exact
        if not re.search(r"\\(?:frac|sqrt|pi)|/", exact) or not _balanced(exact):
            return False
        answer = Formula(exact)
    ranges = isinstance(label.value, Interval | Union)
    if not ranges and bool(_RELATION.search(answer.latex)) > bool(_RELATION.search(label.latex)):
        return False
    bases = [_BASE.fullmatch(formula.latex) for formula in (label, answer)]
    if any(bases):
        return len({found.groups() for found in bases if found}) == 1 and all(bases)
    if label.value is None or answer.value is None:
        return False
    places = decimals + _zeros(label.value)
    if not _is_near(label.value, answer.value, places):
        return False
    return _same_float(label.value, answer.value) or bool(
        verify(
            label.parsed[:1],
            answer.parsed[:1],
            float_rounding=places,
            allow_set_relation_comp=ranges,
            timeout_seconds=None,
        )
    )


def _same_float(label: Any, answer: Any) -> bool:
    """Whether two numbers, one of them with a point, are equal up to the rounding of floats."""
    if not all(isinstance(number, Expr) and number.is_number for number in (label, answer)):
        return False
    first, second = _numbers(label), _numbers(answer)
    pointed = label.has(Float) or answer.has(Float)
    return bool(pointed and first and second and abs(first[0] - second[0]) <= 1e-13 * abs(first[0]))


def _letter(label: Formula, answer: Formula) -> bool:
    """Whether an option stands on one side with its brackets, on the other without: `(B)` and `B`."""
    pair = {label.words or label.latex.casefold(), answer.words or answer.latex.casefold()}
    return len(pair) == 1 and len(next(iter(pair))) == 1


def _is_near(label: Any, answer: Any, places: int) -> bool:
    """False where both are numbers, or tuples or sets of such, and far from each other.

    math-verify takes two expressions below 1e-15 for equal.
    """
    first, second = _numbers(label), _numbers(answer)
    if first is None or second is None or len(first) != len(second):
        return True
    return all(
        abs(a - b) <= max(2 * 10.0**-places, 1e-13 * abs(a)) or a in (b * 100, b / 100)
        for a, b in zip(first, second, strict=True)
    )


def _numbers(value: Any) -> list[complex] | None:
    """The number that an expression is, or those that it holds, a set's in order; None: not only numbers."""
    parts = value.args if isinstance(value, Tuple | FiniteSet) else (value,)
    numbers: list[complex] = []
    for part in parts:
        if not isinstance(part, Basic) or not getattr(part, "is_number", False):
            return None
        try:
            number = complex(part.doit().evalf(20))
        except (TypeError, OverflowError):
            return None
        if not cmath.isfinite(number):
            return None
        numbers.append(number)
    if isinstance(value, FiniteSet):
        numbers.sort(key=lambda number: (number.real, number.imag))
    return numbers


def _zeros(value: Any) -> int:
    """How many zeros follow the point of the smallest number of a label: 2 of 0.001."""
    sizes = [abs(number) for number in _numbers(value) or () if number and abs(number) < 0.1]
    return max((-math.floor(math.log10(size)) - 1 for size in sizes if math.isfinite(size)), default=0)


def _compact(text: str) -> str:
    return re.sub(r"\s|\\left|\\right|(?<=\\)[dt](?=frac)", "", text)


def _balanced(text: str) -> bool:
    depth = 0
    for letter in re.sub(r"\\.", "", text):
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            return False
    return not depth
