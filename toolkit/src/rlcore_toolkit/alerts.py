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
    """`holds`: of a policy's metrics that have `metric`, and the mean of `metric` at the start of the run."""

    name: str
    metric: str
    holds: Callable[[Row, float], bool]
    sentence: str


def _value(row: Row, key: str) -> float:
    """NaN where the row has no number."""
    value = row.get(key)
    return value if isinstance(value, int | float) else math.nan


_RULES = (
    _Rule(
        "no signal",
        "advantage_std",
        lambda own, _: own.get("advantage_mean") == 0 and own["advantage_std"] == 0,
        "There is nothing to learn: in each of the {steps} steps up to step {last} every advantage{whose} "
        "was 0, as where the rewards of a group are all equal (rollout/groups_equal); look at the reward.",
    ),
    _Rule(
        "truncated",
        "truncated",
        lambda own, _: _value(own, "step") > SETTLED and _value(own, "truncated") >= MOST_TRUNCATED,
        "In each of the {steps} steps up to step {last} half of the responses{whose} or more were cut at "
        "--max-response-tokens ({key}, now {value:.2g}); give more, unless the share falls.",
    ),
    _Rule(
        "entropy",
        "entropy",
        # Only the update of sampled responses says whether log-probs compare: given ones explore nothing.
        lambda own, start: "kl_engine_comparable" in own and _value(own, "entropy") < LEAST_ENTROPY * start,
        "{policy} hardly explores any more: in each of the {steps} steps up to step {last} its "
        "entropy was below a tenth of that of the first steps ({key}, now {value:.2g}, then {start:.2g}).",
    ),
    _Rule(
        "gap",
        "kl_engine",
        lambda own, start: (
            _value(own, "kl_engine") > max(MOST_GAP_GROWTH * start, LEAST_GAP)
            and own.get("kl_engine_comparable") != 0
        ),
        "Trainer and engine drift apart: in each of the {steps} steps up to step {last} the gap of their "
        "log-probs{whose} was over five times that of the first steps ({key}, now {value:.2g}, then "
        "{start:.2g}).",
    ),
    _Rule(
        "idle",
        "updates",
        lambda own, _: own["updates"] == 0,
        "{policy} does not learn: in each of the {steps} steps up to step {last} no sample was its "
        "own ({key}); let the generator ask it.",
    ),
)
_OWN, _FURTHER = "train", "policy."
"""What begins the metrics of the run's own policy, and of others, before a slash and their names."""
_ALONE = "rollout/truncated"
"""The truncation of a policy that has no other beside it."""


@dataclass(frozen=True)
class _Policy:
    """A policy's metrics `own` of a step, by their names behind `prefix`."""

    prefix: str
    own: Row
    is_alone: bool

    @property
    def name(self) -> str:
        return self.prefix.removeprefix(_FURTHER) if self.prefix != _OWN else ""

    @property
    def noun(self) -> str:
        if self.is_alone:
            return "the policy"
        return f"the policy {self.name!r}" if self.name else "the run's own policy"

    def key(self, metric: str) -> str:
        return _ALONE if self.is_alone and metric == "truncated" else f"{self.prefix}/{metric}"


def _policies(row: Row) -> Iterator[_Policy]:
    """Those that the metrics of a step tell of."""
    further = sorted({key.partition("/")[0] for key in row if key.startswith(_FURTHER)})
    for prefix in (_OWN, *further):
        own = {key[len(prefix) + 1 :]: row[key] for key in row if key.startswith(f"{prefix}/")}
        if not further:  # a critic may train alone at first, which no further policy has beside it
            own = {**own, "truncated": row.get(_ALONE), "updates": None}
        yield _Policy(prefix, {**own, "step": row.get("step")}, is_alone=not further)


class Alerts:
    """The alerts of one run, `found` by name: the newest of each.

    >>> alerts = Alerts()
    >>> row = {"train/advantage_mean": 0.0, "train/advantage_std": 0.0}
    >>> print(*(alert.name for step in range(1, 8) for alert in alerts.add({"step": step, **row})))
    no signal
    >>> alerts.found["no signal"].first, alerts.found["no signal"].last
    (1, 7)
    """

    def __init__(self) -> None:
        self.found: dict[str, Alert] = {}
        self._starts: dict[str, list[float]] = {}
        self._in_a_row: Counter[str] = Counter()

    def add(self, row: Row) -> list[Alert]:
        """Look at the metrics of the next step. Returns the alerts that begin with it."""
        return [alert for policy in _policies(row) for rule in _RULES for alert in self._look(rule, policy)]

    def _look(self, rule: _Rule, policy: _Policy) -> Iterator[Alert]:
        step, value = _value(policy.own, "step"), _value(policy.own, rule.metric)
        if not math.isfinite(value):
            return  # as in the row of an evaluation
        key, name = policy.key(rule.metric), f"{rule.name} {policy.name}".strip()
        start = self._starts.setdefault(key, [])
        if len(start) < STEPS:
            start.append(value)
        self._in_a_row[name] = self._in_a_row[name] + 1 if rule.holds(policy.own, fmean(start)) else 0
        if self._in_a_row[name] == STEPS:
            noun, last = policy.noun, int(step)
            said = rule.sentence.format(
                steps=STEPS,
                last=last,
                key=key,
                value=value,
                start=fmean(start),
                policy=noun[0].upper() + noun[1:],
                whose="" if policy.is_alone else f" of {noun}",
            )
            alert = Alert(name=name, key=key, first=last - STEPS + 1, last=last, sentence=said)
            self.found[name] = alert
            yield alert
        elif self._in_a_row[name] > STEPS:
            self.found[name] = replace(self.found[name], last=int(step))
