r"""The reward `math`: an answer in LaTeX, boxed or not, or a plain number, compared by math-verify.

math-verify's own time limits are off. They are of the wall clock, so that a busy machine would make an answer
wrong, and they cannot interrupt a power of large numbers. Those of `limits.each` do neither.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from rlcore import Json, Sample, Score
from rlcore_math.config import MathConfig
from rlcore_math.limits import each

_BOXED = LatexExtractionConfig(boxed_match_priority=0)
_MARKED = re.compile(r"\\boxed|\\fbox|\$|\\\(|\\\[")
"""What shows that a label says itself where its formula is."""

# It warns, once a process, that its time limits are off.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Math:
    r"""1.0 where the answer of a response equals the label, else 0.0.

    The answer is what the last `\boxed{}` holds; without one, what follows words such as "the answer is", or
    the last formula or number. Sets, intervals, equations, percents and units are compared as math-verify
    does (https://github.com/huggingface/Math-Verify). An answer that takes too much time or memory is wrong:
    it is the policy's doing, and no failure of its siblings.

    Parts: `answered`, 1.0 where an answer was found; `over_limit`, 1.0 where it took too much.
    """

    def __init__(self, config: MathConfig) -> None:
        self._config = config
        self._targets = (_BOXED,) if config.boxed else (_BOXED, ExprExtractionConfig())

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a label without mathematics in it."""
        gold = _gold(samples[0].prompt.label)
        found = each(
            lambda text: self._compare(text, gold),
            [sample.text for sample in samples],
            seconds=self._config.seconds,
            memory_mib=self._config.memory_mib,
        )
        return [_score(*result) if result else _score(False, True, over_limit=True) for result in found]

    def _compare(self, text: str, gold: list[Any]) -> tuple[bool, bool]:
        """Whether the answer of a response is equal to the label, and whether there is one."""
        if self._config.boxed and not re.search(r"\\(boxed|fbox)", text):
            return False, False
        found = parse(text, extraction_config=self._targets, parsing_timeout=None)
        equal = verify(gold, found, float_rounding=self._config.decimals, timeout_seconds=None)
        return bool(equal), bool(found)


def _score(equal: bool, answered: bool, *, over_limit: bool = False) -> Score:
    return Score(value=float(equal), parts={"answered": float(answered), "over_limit": float(over_limit)})


def _gold(label: Json) -> list[Any]:
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        raise ValueError(f"the label {label!r} is no number and no formula to compare an answer with")
    text = str(label)
    marked = text if _MARKED.search(text) else rf"\boxed{{{text}}}"
    found: list[Any] = parse(marked, extraction_config=(_BOXED, ExprExtractionConfig()), parsing_timeout=None)
    if not found:
        raise ValueError(f"math-verify finds no number and no formula in the label {label!r}")
    return found
