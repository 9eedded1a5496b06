r"""Rewards for an answer in LaTeX, or a plain number, compared with the label by math-verify.

They differ in where they look for the answer.

math-verify's own time limits are off. They are of the wall clock, so that a busy machine would make an answer
wrong, and they cannot interrupt a power of large numbers. Those of `limits.each` do neither.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress

from rlcore import Json, Prompt, Sample, Score, parse_json
from rlcore_math.config import ComparisonConfig, DapoConfig, MathConfig
from rlcore_math.equality import Formula, equal
from rlcore_math.limits import each
from rlcore_math.places import LONGEST, has_box, last_box, last_value, on_line

_ANSWER = re.compile(r".*\banswer[*\s]{0,9}:[*]{0,2}\s*([^\n]+)", re.IGNORECASE | re.DOTALL)


class _MathReward(ABC):
    """1.0 where the answer of a response equals the label, else 0.0.

    Sets, intervals, equations, percents and units are compared as math-verify does
    (https://github.com/huggingface/Math-Verify). An answer that takes too much time or memory is wrong: it is
    the policy's doing, and no failure of its siblings.

    Parts: `answered`, 1.0 where an answer was found; `over_limit`, 1.0 where it took too much.
    """

    def __init__(self, config: ComparisonConfig) -> None:
        self._config = config

    @abstractmethod
    def _answer(self, text: str) -> str | None:
        """The part of a response that holds the answer; None: it has none."""

    @classmethod
    def prompt_complaints(cls, config: ComparisonConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Labels without mathematics in them, and those that take too long to read."""
        odd = sorted({json.dumps(prompt.label) for prompt in prompts if not _is_plain(prompt.label)})
        found = dict(
            zip(odd, each(_fault, odd, seconds=config.seconds, memory_mib=config.memory_mib), strict=True)
        )
        for prompt in prompts:
            fault = "" if _is_plain(prompt.label) else found[json.dumps(prompt.label)]
            yield f"math-verify takes too long to read the label {prompt.label!r}" if fault is None else fault

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label without mathematics in it."""
        labels = _formulas(samples[0].prompt.label)
        results = each(
            lambda text: self._compare(text, labels),
            [sample.text for sample in samples],
            seconds=self._config.seconds,
            memory_mib=self._config.memory_mib,
        )
        over_limit = self._score(False, True, over_limit=True)
        return [self._score(*result) if result else over_limit for result in results]

    def _score(self, equal: bool, answered: bool, *, over_limit: bool = False) -> Score:
        return Score(value=float(equal), parts={"answered": float(answered), "over_limit": float(over_limit)})

    def _compare(self, text: str, labels: Sequence[Formula]) -> tuple[bool, bool]:
        """Whether the answer of a response is equal to one of the labels, and whether there is one."""
        answer = self._answer(text)
        if not answer or len(answer) > LONGEST:
            return False, False
        said = Formula(answer)
        return any(equal(label, said, self._config.decimals) for label in labels), True


class Math(_MathReward):
    r"""Looks at what the last `\boxed{}` holds; without one, at what follows words such as "the answer is",

    or at the last formula or number.
    """

    def __init__(self, config: MathConfig) -> None:
        super().__init__(config)
        self._boxed = config.boxed

    def _answer(self, text: str) -> str | None:
        return last_box(text) if self._boxed or has_box(text) else last_value(text)


class DeepScaler(_MathReward):
    r"""Looks at the `\boxed{}` behind the end of the thoughts, `</think>` or `###Response`; a response that

    ends its thoughts with neither is wrong, as one without a box is.
    """

    def _answer(self, text: str) -> str | None:
        for end in ("</think>", "###Response"):
            if end in text:
                return last_box(text.rpartition(end)[2])
        return None


class Dapo(_MathReward):
    """Looks at what follows the last `Answer:` of the last 300 characters, to the end of its line.

    1.0 where it is right, else -1.0. Part: `acc`, 1.0 or 0.0, beside those of the others.
    """

    def __init__(self, config: DapoConfig) -> None:
        super().__init__(config)
        self._characters = config.characters

    def _answer(self, text: str) -> str | None:
        found = _ANSWER.search(text[-self._characters :])
        return on_line(found[1]) if found else None

    def _score(self, equal: bool, answered: bool, *, over_limit: bool = False) -> Score:
        parts = super()._score(equal, answered, over_limit=over_limit).parts
        return Score(value=1.0 if equal else -1.0, parts={"acc": float(equal), **parts})


def _is_plain(label: Json) -> bool:
    """Whether a label is a number that need not be parsed to know that it can be."""
    if isinstance(label, str):
        return bool(re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?", label, re.ASCII))
    return isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)


def _fault(label: str) -> str:
    """Why a label, as JSON, is no formula; empty: it is one."""
    try:
        _formulas(json.loads(label))
    except ValueError as error:
        return str(error)
    return ""


def _formulas(label: Json) -> list[Formula]:
    """The accepted answers: a label, those of a list, or those of a list of texts as JSON."""
    if isinstance(label, str) and label.startswith('["'):
        with suppress(ValueError):  # LaTeX may begin so too
            label = parse_json(label)
    accepted = label if isinstance(label, list | tuple) and label else [label]
    return [_formula(one) for one in accepted]


def _formula(label: Json) -> Formula:
    """One accepted answer. Of a solution as in GSM8K and MATH it is what follows `####`, or the last box."""
    number = isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)
    if not number and not isinstance(label, str):
        raise ValueError(f"the label {label!r} is no number and no formula to compare an answer with")
    text = str(label).rpartition("####")[2]
    text = (last_box(text) if has_box(text) else on_line(text) if "$" in text else text) or ""
    formula = Formula(text)
    if formula.words is None and formula.value is None and not formula.is_text:
        raise ValueError(f"math-verify finds no number and no formula in the label {label!r}")
    return formula
