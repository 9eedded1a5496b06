"""The proof that engines sample with the adapter that was published: the log-probs of one short text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import MappingProxyType

from rlcore.api.errors import LogProbGapError
from rlcore.engines.client import EngineClient

PROBE_TOKENS = 48
SHARE = 1 / 8
"""The share of what the adapter changes that may be missing, as long as that is below the bound."""


@dataclass(kw_only=True)
class Probe:
    """Compares engines with the trainer after each publication.

    `token_ids`: the text, 2 tokens or more. `noise`: the mean gap of a token that rounding may cause,
    or twice that of an adapter that changes nothing yet. `bound`: the most of that one, and the most that
    `SHARE` may add. `policy`: the one that is asked.
    """

    token_ids: Sequence[int]
    noise: float
    bound: float
    policy: str = ""
    _own: Sequence[float] = ()
    _base: Sequence[float] = ()
    _before: Sequence[float] = ()
    _others: Mapping[str, Sequence[float]] = field(default_factory=dict)
    _gaps: list[float] = field(default_factory=list)
    _rounding: float = 0.0

    def expect(
        self,
        policy: Sequence[float],
        base: Sequence[float],
        others: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> None:
        """The trainer's log-probs of the next publication: with the adapter, without any, and with `others`
        (by policy).
        """
        self._own, self._base, self._before, self._others = policy, base, self._own, others
        self._gaps = []

    async def check(self, client: EngineClient) -> None:
        """LogProbGapError where the engine has other log-probs than the trainer, and what these are."""
        found = await client.score(self.token_ids, policy=self.policy)
        gap, effect = _apart(found, self._own), _apart(self._own, self._base)
        self._gaps.append(gap)
        if not effect and gap <= max(self.noise, self.bound):  # of a new adapter: the gap is of rounding
            self._rounding = max(self._rounding, 2 * gap)
            return
        noise = max(self.noise, self._rounding)
        if gap <= noise + min(SHARE * effect, self.bound):  # NaN fails it
            return
        nearest = min(gap, effect) * SHARE + noise
        if _apart(found, self._base) <= nearest:
            what = "samples from the model without the adapter"
        elif self._before and _apart(found, self._before) <= nearest:
            what = "samples with the adapter of the publication before"
        elif near := [name for name, other in self._others.items() if _apart(found, other) <= nearest]:
            what = f"samples with the adapter of {_shown(near[0])}"
        else:
            what = "does not apply the adapter as the trainer does"
        whose = f" for {_shown(self.policy)}" if self.policy or self._others else ""
        raise LogProbGapError(
            f"The engine at {client.url} {what}{whose}: on average, its log-probs of a probe are {gap:.3g} "
            f"from the trainer's, and the adapter changes these by {effect:.3g}."
        )

    def take_metrics(self) -> dict[str, float]:
        """In nats, the largest gap of an engine at the last publication, and what the adapter changes."""
        gaps, self._gaps = self._gaps, []
        if not gaps:
            return {}
        effect = _apart(self._own, self._base)
        place = f"policy.{self.policy}" if self.policy else "engine"
        return {f"{place}/adapter_gap": max(gaps), f"{place}/adapter_effect": effect}


def _shown(policy: str) -> str:
    return f"the policy {policy!r}" if policy else "the run's own policy"


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean of their differences."""
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))
