r"""Rewards for an answer in LaTeX, or a plain number, compared with the label by math-verify.

They differ in where they look for the answer.

math-verify's own time limits are off. They are of the wall clock, so that a busy machine would make an answer
wrong, and they cannot interrupt a power of large numbers. Those of `limits.each` do neither.
"""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from rlcore import Json, Sample, Score
from rlcore_math.config import ComparisonConfig, DapoConfig, DeepScalerConfig, MathConfig
from rlcore_math.limits import each

_BOXED = LatexExtractionConfig(boxed_match_priority=0)
_MARKED = re.compile(r"\\boxed|\\fbox|\$|\\\(|\\\[")
"""What shows that a text says itself where its formula is."""

_BOX = re.compile(r"\\(boxed|fbox)")
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)

# It warns, once a process, that its time limits are off.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class _MathReward(ABC):
    """1.0 where the answer of a response equals the label, else 0.0.

    Sets, intervals, equations, percents and units are compared as math-verify does
    (https://github.com/huggingface/Math-Verify). An answer that takes too much time or memory is wrong: it is
    the policy's doing, and no failure of its siblings.

    Parts: `answered`, 1.0 where an answer was found; `over_limit`, 1.0 where it took too much.
    """

    def __init__(self, config: ComparisonConfig, *, boxed: bool) -> None:
        """`boxed`: a number outside of a box is no answer."""
        self._config = config
        self._targets = (_BOXED,) if boxed else (_BOXED, ExprExtractionConfig())

    @abstractmethod
    def _answer(self, text: str) -> str | None:
        """The part of a response that holds the answer; None: it has none."""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label without mathematics in it."""
        gold = _gold(samples[0].prompt.label)
        results = each(
            lambda text: self._compare(text, gold),
            [sample.text for sample in samples],
            seconds=self._config.seconds,
            memory_mib=self._config.memory_mib,
        )
        return [
            self._score(*result) if result else self._score(False, True, over_limit=True)
            for result in results
        ]

    def _score(self, equal: bool, answered: bool, *, over_limit: bool = False) -> Score:
        return Score(value=float(equal), parts={"answered": float(answered), "over_limit": float(over_limit)})

    def _compare(self, text: str, gold: list[Any]) -> tuple[bool, bool]:
        """Whether the answer of a response is equal to the label, and whether there is one."""
        answer = self._answer(text)
        if answer is None:
            return False, False
        parsed = parse(answer, extraction_config=self._targets, parsing_timeout=None)
        equal = verify(gold, parsed, float_rounding=self._config.decimals, timeout_seconds=None)
        return bool(equal), bool(parsed)


class Math(_MathReward):
    r"""Looks at what the last `\boxed{}` holds; without one, at what follows words such as "the answer is",

    or at the last formula or number.
    """

    def __init__(self, config: MathConfig) -> None:
        super().__init__(config, boxed=config.boxed)
        self._boxed = config.boxed

    def _answer(self, text: str) -> str | None:
        return None if self._boxed and not _BOX.search(text) else text


class DeepScaler(_MathReward):
    r"""Looks at the `\boxed{}` behind the end of the thoughts, `</think>` or `###Response`; a response that

    ends its thoughts with neither is wrong, as one without a box is.
    """

    def __init__(self, config: DeepScalerConfig) -> None:
        super().__init__(config, boxed=True)

    def _answer(self, text: str) -> str | None:
        for end in ("</think>", "###Response"):
            if end in text:
                said = text.rpartition(end)[2]
                return said if _BOX.search(said) else None
        return None


class Dapo(_MathReward):
    """Looks at what follows the last `Answer:` of the last 300 characters, to the end of its line.

    1.0 where it is right, else -1.0. Part: `acc`, 1.0 or 0.0, beside those of the others.
    """

    def __init__(self, config: DapoConfig) -> None:
        super().__init__(config, boxed=False)
        self._characters = config.characters

    def _answer(self, text: str) -> str | None:
        matches = _ANSWER.findall(text[-self._characters :])
        return _marked(matches[-1]) if matches else None

    def _score(self, equal: bool, answered: bool, *, over_limit: bool = False) -> Score:
        parts = super()._score(equal, answered, over_limit=over_limit).parts
        return Score(value=1.0 if equal else -1.0, parts={"acc": float(equal), **parts})


def _marked(text: str) -> str:
    r"""`text` as a formula, `\boxed{}` unless it says itself where its formula is."""
    return text if _MARKED.search(text) else rf"\boxed{{{text}}}"


def _gold(label: Json) -> list[Any]:
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        raise ValueError(f"the label {label!r} is no number and no formula to compare an answer with")
    gold: list[Any] = parse(
        _marked(str(label)), extraction_config=(_BOXED, ExprExtractionConfig()), parsing_timeout=None
    )
    if not gold:
        raise ValueError(f"math-verify finds no number and no formula in the label {label!r}")
    return gold
