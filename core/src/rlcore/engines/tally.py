"""Counts what an engine has done: from its answers, and from how busy it says it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class EngineTally:
    """Counts of the answers of `/generate`, by the names in their `meta_info`, and looks at the server.

    `verified`: forward passes that checked drafts; `drafted`: tokens of the answers that had some. `running`,
    `waiting`: requests, at each look.
    """

    prompt: int = 0
    cached: int = 0
    drafted: int = 0
    verified: int = 0
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def note(self, meta: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.prompt += int(meta.get("prompt_tokens") or 0)
        self.cached += int(meta.get("cached_tokens") or 0)
        if verified := int(meta.get("spec_verify_ct") or 0):
            self.verified += verified
            self.drafted += int(meta.get("completion_tokens") or 0)

    def look(self, running: int, waiting: int) -> None:
        """Note how many requests run and wait at the server."""
        self.running.append(running)
        self.waiting.append(waiting)


def tally_metrics(tallies: Iterable[EngineTally]) -> dict[str, float]:
    """`engine/…` and `perf/…` of the engines together; what nobody counted is left out."""
    every = list(tallies)
    prompt, verified = sum(tally.prompt for tally in every), sum(tally.verified for tally in every)
    metrics: dict[str, float] = {}
    if prompt:
        metrics["engine/cache_hit_rate"] = sum(tally.cached for tally in every) / prompt
    if verified:
        metrics["engine/accept_length"] = sum(tally.drafted for tally in every) / verified
    for name in ("running", "waiting"):
        looks = [count for tally in every for count in getattr(tally, name)]
        if looks:
            metrics[f"perf/{name}_mean"] = sum(looks) / len(looks)
            metrics[f"perf/{name}_max"] = max(looks)
    return metrics
