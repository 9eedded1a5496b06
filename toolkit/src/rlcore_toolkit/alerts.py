"""`Alerts`: what looks wrong in the metrics of a run. `rlcore train` warns of it, `rlcore view` shows it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from rlcore import Json

STEPS = 5
"""An alert begins after so many steps in a row. The start of a run, to which it is compared, is as long."""
SETTLED = 20
"""Steps in which responses may be cut: a model first learns to end them."""
MOST_TRUNCATED = 0.5
LEAST_ENTROPY = 0.1
"""The share of the entropy at the start below which a policy has collapsed."""
MOST_GAP_GROWTH, LEAST_GAP = 5.0, 1e-3
"""Times the gap at the start; and the nats below which a gap is noise."""

Row = Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What looked wrong from the step `first` to the step `last`. `key`: the metric that shows it."""

    name: str
    key: str
    first: int
    last: int
    sentence: str


@dataclass(frozen=True)
class _Rule:
    """`holds`: of a row that has `key`, and the mean of `key` at the start of the run."""

    name: str
    key: str
    holds: Callable[[Row, float], bool]
    sentence: str


def _value(row: Row, key: str) -> float:
    """NaN where the row has no number."""
    value = row.get(key)
    return value if isinstance(value, int | float) else math.nan


_RULES = (
    _Rule(
        "no signal",
        "train/advantage_std",
        lambda row, _: row.get("train/advantage_mean") == 0 and row["train/advantage_std"] == 0,
        "There is nothing to learn: in each of the {steps} steps up to step {last} every advantage was 0, as "
        "where the rewards of a group are all equal (rollout/groups_equal); look at the reward.",
    ),
    _Rule(
        "truncated",
        "rollout/truncated",
        lambda row, _: _value(row, "step") > SETTLED and _value(row, "rollout/truncated") >= MOST_TRUNCATED,
        "In each of the {steps} steps up to step {last} half of the responses or more were cut at "
        "--max-response-tokens (rollout/truncated, now {value:.2g}); give more, unless the share falls.",
    ),
    _Rule(
        "entropy",
        "train/entropy",
        # Only the update of sampled responses says whether log-probs compare: given ones explore nothing.
        lambda row, start: (
            "train/kl_engine_comparable" in row and _value(row, "train/entropy") < LEAST_ENTROPY * start
        ),
        "The policy hardly explores any more: in each of the {steps} steps up to step {last} its entropy was "
        "below a tenth of that of the first steps (train/entropy, now {value:.2g}, then {start:.2g}).",
    ),
    _Rule(
        "gap",
        "train/kl_engine",
        lambda row, start: (
            _value(row, "train/kl_engine") > max(MOST_GAP_GROWTH * start, LEAST_GAP)
            and row.get("train/kl_engine_comparable") != 0
        ),
        "Trainer and engine drift apart: in each of the {steps} steps up to step {last} the gap of their "
        "log-probs was over five times that of the first steps (train/kl_engine, now {value:.2g}, then "
        "{start:.2g}).",
    ),
)


def _idle(key: str) -> _Rule:
    """The rule of a policy beside the run's own, by the metric that counts its optimizer steps."""
    name = key.removeprefix("policy.").removesuffix("/updates")
    sentence = (
        f"The policy {name!r} does not learn: in each of the {{steps}} steps up to step {{last}} no sample "
        f"was its own ({key}); let the generator ask it."
    )
    return _Rule(f"idle {name}", key, lambda row, _: row.get(key) == 0, sentence)


def _rules(row: Row) -> Iterator[_Rule]:
    """The rules of every run, and one for each further policy."""
    yield from _RULES
    yield from (_idle(key) for key in row if key.startswith("policy.") and key.endswith("/updates"))


class Alerts:
    """The alerts of one run, `found` by name: the newest of each.

    >>> alerts = Alerts()
    >>> row = {"train/advantage_mean": 0.0, "train/advantage_std": 0.0}
    >>> [alert.name for step in range(1, 8) for alert in alerts.add({"step": step, **row})]
    ['no signal']
    >>> alerts.found["no signal"].first, alerts.found["no signal"].last
    (1, 7)
    """

    def __init__(self) -> None:
        self.found: dict[str, Alert] = {}
        self._starts: dict[str, list[float]] = {}
        self._in_a_row: Counter[str] = Counter()

    def add(self, row: Row) -> list[Alert]:
        """Look at the metrics of the next step. Returns the alerts that begin with it."""
        begun = []
        for rule in _rules(row):
            step, value = int(_value(row, "step")), _value(row, rule.key)
            if not math.isfinite(value):
                continue  # as in the row of an evaluation
            start = self._starts.setdefault(rule.key, [])
            if len(start) < STEPS:
                start.append(value)
            self._in_a_row[rule.name] = self._in_a_row[rule.name] + 1 if rule.holds(row, fmean(start)) else 0
            if self._in_a_row[rule.name] == STEPS:
                said = rule.sentence.format(steps=STEPS, last=step, value=value, start=fmean(start))
                alert = Alert(name=rule.name, key=rule.key, first=step - STEPS + 1, last=step, sentence=said)
                self.found[rule.name] = alert
                begun.append(alert)
            elif self._in_a_row[rule.name] > STEPS:
                self.found[rule.name] = replace(self.found[rule.name], last=step)
        return begun
