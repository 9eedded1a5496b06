"""The proof that engines sample with the adapter that was published: the log-probs of one short text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rlcore.api.errors import LogProbGapError
from rlcore.engines.client import EngineClient

PROBE_TOKENS = 48
SHARE = 1 / 8
"""The share of what the adapter changes that may be missing, as long as that is below the bound."""


@dataclass(kw_only=True)
class AdapterProbe:
    """Compares engines with the trainer after each publication.

    `token_ids`: the text, 2 tokens or more. `noise`: the mean gap of a token that rounding may cause.
    `bound`: the most that `SHARE` may add to it.
    """

    token_ids: Sequence[int]
    noise: float
    bound: float
    _policy: Sequence[float] = ()
    _base: Sequence[float] = ()
    _before: Sequence[float] = ()
    _gaps: list[float] = field(default_factory=list)

    def expect(self, policy: Sequence[float], base: Sequence[float]) -> None:
        """The trainer's log-probs of the next publication, with its adapter and without any."""
        self._policy, self._base, self._before = policy, base, self._policy

    async def check(self, client: EngineClient) -> None:
        """LogProbGapError where the engine has other log-probs than the trainer, and what these are."""
        found = await client.score(self.token_ids)
        gap, effect = _apart(found, self._policy), _apart(self._policy, self._base)
        self._gaps.append(gap)
        if gap <= self.noise + min(SHARE * effect, self.bound):  # NaN fails it
            return
        nearest = min(gap, effect) * SHARE + self.noise
        if _apart(found, self._base) <= nearest:
            what = "samples from the model without the adapter"
        elif self._before and _apart(found, self._before) <= nearest:
            what = "samples with the adapter of the publication before"
        else:
            what = "does not apply the adapter as the trainer does"
        raise LogProbGapError(
            f"The engine at {client.url} {what}: on average, its log-probs of a probe are {gap:.3g} from the "
            f"trainer's, and the adapter changes these by {effect:.3g}."
        )

    def take_metrics(self) -> dict[str, float]:
        """In nats, the largest gap of an engine at the last publication, and what the adapter changes."""
        gaps, self._gaps = self._gaps, []
        if not gaps:
            return {}
        effect = _apart(self._policy, self._base)
        return {"engine/adapter_gap": max(gaps), "engine/adapter_effect": effect}


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean of their differences."""
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))
