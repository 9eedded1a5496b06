"""Profiles chosen steps of a process by torch's profiler, which is imported for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile

PROFILE = "profile"
"""The folder of profiles in a run's folder."""

_EVENTS = 100_000
"""How many allocations a memory snapshot remembers."""


class StepProfiler:
    """Profiles the steps `first` to `last` of one rank; on a GPU its memory too.

    Writes `steps-FIRST-LAST-rank-RANK.json.gz`, a Chrome trace, into `folder`, and for memory a `.pickle` of
    the same name, which https://pytorch.org/memory_viz shows.
    """

    def __init__(self, folder: Path, rank: int, first: int, last: int) -> None:
        self._path = folder / f"steps-{first}-{last}-rank-{rank}.json.gz"
        self._first, self._last = first, last
        self._profile: profile | None = None

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Around a step, profiled or not; in the trace it is a span of its own."""
        if not self._first <= step <= self._last:
            yield
            return
        from torch.profiler import record_function

        if self._profile is None:
            self._begin()
        with record_function(f"step {step}"):
            yield
        if step == self._last:
            self.end()

    def end(self) -> None:
        """Write what was profiled, unless that is done."""
        if self._profile is None:
            return
        import torch

        self._profile.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._path))
        if torch.cuda.is_available():
            # Underscored, and documented all the same: torch has no other names for these.
            torch.cuda.memory._dump_snapshot(str(self._path.with_suffix("").with_suffix(".pickle")))
            torch.cuda.memory._record_memory_history(enabled=None)
        self._profile = None

    def _begin(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=_EVENTS)
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()
