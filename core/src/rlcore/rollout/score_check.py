"""Checks the scores that one reward gives to a group. Each is a `Score`, or a `Failure` with a reason."""

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

from rlcore.api.errors import described, located, returned
from rlcore.api.types import Sample, Score


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no score. `kind` groups failures of one cause; `trace` may be empty."""

    kind: str
    reason: str
    trace: str = ""


ScoreOrFailure = Score | Failure
"""The outcome for one sample."""
_FLOAT32_MAX = 3.4028234663852886e38
_NUMBER = (float, int, SupportsFloat, SupportsIndex)
"""The first two come first because the check of a protocol is slow."""


def checked_scores(
    reward: Any, samples: Sequence[Sample], value_range: tuple[float, float] | None = None
) -> list[ScoreOrFailure]:
    """What the reward says of each sample; what it says wrongly, or not at all, is a Failure.

    `value_range`: the least and the greatest value of a score and its parts; None: any finite number.
    """
    try:
        expected: Any = Iterable  # mypy takes only classes that can be made
        wanted = "a list of Scores, from a plain function"
        scores = list(returned("score()", reward.score(samples), expected, wanted))
    except Exception as error:
        return [failure_of(error)] * len(samples)
    if len(scores) != len(samples):
        reason = f"the reward gave {len(scores)} scores for {len(samples)} samples"
        return [Failure(kind="count", reason=reason)] * len(samples)
    return [checked_score(score, sample, value_range) for score, sample in zip(scores, samples, strict=True)]


def failure_of(error: Exception) -> Failure:
    """The failure for an error."""
    trace = "".join(traceback.format_exception(error))
    return Failure(kind=type(error).__name__, reason=located(error), trace=trace)


def checked_score(score: object, sample: Sample, ends: tuple[float, float] | None = None) -> ScoreOrFailure:
    """The score in plain floats, or what is wrong with it. `ends`: of the range of its value and parts."""
    if not isinstance(score, Score):
        return Failure(kind="type", reason=f"{described(score)} is no Score")
    tokens = score.per_token
    try:
        if tokens is not None and len(tokens) != len(sample.response_ids):
            reason = f"per_token has {len(tokens)} values for {len(sample.response_ids)} response tokens"
            return Failure(kind="per_token", reason=reason)
        return Score(
            value=_within(score.value, "value", ends),
            per_token=None if tokens is None else _credited(tokens, sample.loss_mask),
            parts={str(name): _within(part, f"part {name!r}", ends) for name, part in score.parts.items()},
            applies=score.applies,
        )
    except ValueError as error:
        return Failure(kind="number", reason=str(error))
    except (TypeError, AttributeError):
        found = f"{described(tokens)} as per_token and {described(score.parts)} as parts"
        expected = "a number for each response token, or None, and a mapping of names to numbers"
        return Failure(kind="type", reason=f"the score has {found}; expected {expected}")


def as_float(number: object) -> float | None:
    """`number` as a float; None where it is none: a text, an array of several, an int beyond floats."""
    try:
        return float(number) if isinstance(number, _NUMBER) else None
    except Exception:  # a plugin's class raises what it likes
        return None


def _credited(tokens: Sequence[object], mask: Sequence[int]) -> tuple[float, ...]:
    """Finite numbers. One on a masked token, which a tool wrote, counts at the last live one before it."""
    credit, live = [0.0] * len(tokens), None
    for place, token in enumerate(tokens):
        value = _finite(token, "per_token")
        live = place if mask[place] else live
        if value and live is None:
            raise ValueError(
                f"per_token has a value for response token {place}, which is masked, as are all before it: "
                "it would be lost"
            )
        if live is not None:
            credit[live] += value
    return tuple(credit)


def _within(number: object, name: str, ends: tuple[float, float] | None) -> float:
    value = _finite(number, name)
    low, high = ends or (value, value)
    if not low <= value <= high:
        raise ValueError(f"the {name} of a score is {value:g}, which is not from {low:g} to {high:g}")
    return value


def _finite(number: object, name: str) -> float:
    value = as_float(number)
    if value is None or not abs(value) <= _FLOAT32_MAX:
        shown = described(number if value is None else value)
        raise ValueError(f"the {name} of a score is {shown}, which is no finite number of 32 bits")
    return value
