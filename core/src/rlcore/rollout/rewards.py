"""`RewardPool`: rewards run in worker processes that are killed when they take too long.

A process that has imported the rewards forks the workers.
"""

import asyncio
import logging
import math
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlcore.api.errors import PluginError, RlcoreError, RunError, one_line
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import PluginFile
from rlcore.api.types import RewardStatus, Sample
from rlcore.rollout import reward_worker
from rlcore.rollout.score_check import Failure, ScoreOrFailure
from rlcore_machine.connected_process import ConnectedForks, ConnectedProcess, message
from rlcore_machine.tasks import together

START_LIMIT_S = 120.0
"""Seconds to import the rewards, and to build them."""

MOST_AT_ONCE = 8
"""Groups that a quick worker takes together: it judges one while this process reads another's scores."""
MOST_TOKENS = 1 << 17
"""Response tokens beyond which no further group goes along: the event loop waits while they are packed."""
QUICK_S = 0.005
"""Seconds for a group, below which a worker is quick."""
EXIT_GRACE_S = 1.0
"""Seconds that a process has to end once its connection is closed, so that its exit code is known."""
TIMED_OUT = "timed_out"
TIMEOUTS_THAT_END = 4
"""So many groups of each worker that take too long, and none so far that got a score, end a run."""
"""The kind of a Failure that is a time-out."""
ERROR_KEY = "reward_error"
"""In a sample's metadata: why it has no score."""
_log = logging.getLogger(__name__)


class RewardPool:
    """`workers` processes, each with its own instance of every reward of `parts`, whose scores they add up.

    `timeout`: seconds that the rewards may take for one group. `memory_gib`: what a worker may allocate; more
    is a MemoryError. `plugin_files` are installed in each worker before `parts` are unpickled there. Workers
    end with the pool, and with this process however it ends. `tokenizer`: the directory of the run's, for
    rewards that ask for it. `settings`: of the run, by name, for the same.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        *,
        workers: int,
        timeout: float,
        memory_gib: float | None = None,
        plugin_files: Sequence[PluginFile] = (),
        tokenizer: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = " + ".join(repr(part.name) for part in parts)
        told = (tokenizer, settings, tuple(plugin_files), tuple(parts))
        # One pickle behind the other: `reward_worker.imported` installs the files before it reads the parts.
        prepare = (f"{reward_worker.__name__}:imported", b"".join(map(pickle.dumps, told)))
        self._forks = ConnectedForks(prepare, f"{reward_worker.__name__}:work", [memory_gib])
        self._workers = [_Worker(self._forks, self._name, timeout) for _ in range(workers)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._waiting: deque[_PendingGroup] = deque()
        # The event loop holds its tasks weakly: without these names one could be collected before it
        # ends.
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: set[str] = set()
        self._has_scored = False
        self._late_groups = 0

    async def start(self) -> None:
        """Starts every worker and waits until each has built the rewards.

        Raises PluginError where one cannot be built, RunError where a worker does not come up.
        """
        try:
            await together(worker.start() for worker in self._workers)
            for worker in self._workers:
                self._idle.put_nowait(worker)
        except BaseException:
            self.stop()
            raise

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """The siblings of one group with their reward status, and their score where it is SCORED.

        FAILED (an exception, a dead worker, no or no finite number) and TIMED_OUT carry the reason in
        `metadata["reward_error"]` and no score. Groups beyond what the workers take wait their turn.
        Raises PluginError where all groups so far have taken too long (`TIMEOUTS_THAT_END`).
        """
        # They are megabytes that no reward can use.
        sent = [sample.but(engine_columns={}) if sample.engine_columns else sample for sample in samples]
        group = _PendingGroup(sent)
        self._waiting.append(group)
        self._serve_soon()
        outcomes = await group.outcomes
        if not self._has_scored:
            self._check_first(outcomes)
        return [self._settle(sample, outcome) for sample, outcome in zip(samples, outcomes, strict=True)]

    def _check_first(self, outcomes: Sequence[ScoreOrFailure]) -> None:
        """Counts a group while there is no score yet. PluginError where too many came too late (`score`)."""
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        self._has_scored = len(failures) < len(outcomes)
        self._late_groups += any(failure.kind == TIMED_OUT for failure in failures)
        if not self._has_scored and self._late_groups >= TIMEOUTS_THAT_END * len(self._workers):
            raise PluginError(
                f"The rewards give no score: {failures[0].reason}, {self._late_groups} times in a row."
            )

    def stop(self) -> None:
        """Kills the workers with all their children. May be called again, and from any thread."""
        for worker in self._workers:
            worker.kill()
        self._forks.stop()

    async def __aenter__(self) -> "RewardPool":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()

    def _serve_soon(self) -> None:
        # At least one task for each group that waits, so that none is left when a worker becomes idle.
        serving = asyncio.create_task(self._serve())
        self._tasks.add(serving)
        serving.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        """Have the next idle worker judge what waits, if another has not taken it by then."""
        worker = await self._idle.get()
        taken = deque(self._taken(worker))
        try:
            await worker.judge(taken)
        finally:
            self._idle.put_nowait(worker)
        # Those that came after a group over which the process has ended: they keep their place.
        self._waiting.extendleft(reversed(taken))
        for _ in taken:
            self._serve_soon()

    def _taken(self, worker: "_Worker") -> "list[_PendingGroup]":
        """A group, or several where they take so little time that asking for each takes longer."""
        # No more than its share, or other workers would have nothing to do.
        fair = math.ceil(len(self._waiting) / len(self._workers))
        count = min(fair, MOST_AT_ONCE if worker.is_quick else 1)
        taken: list[_PendingGroup] = []
        tokens = 0
        while count and tokens < MOST_TOKENS:
            count -= 1
            group = self._waiting.popleft()
            if not group.outcomes.done():
                taken.append(group)
                tokens += sum(len(sample.response_ids) for sample in group.samples)
        return taken

    def _settle(self, sample: Sample, outcome: ScoreOrFailure) -> Sample:
        if not isinstance(outcome, Failure) and not outcome.applies:
            return sample.but(reward_status=RewardStatus.EXEMPT, score=None)
        if not isinstance(outcome, Failure):
            return sample.but(reward_status=RewardStatus.SCORED, score=outcome)
        self._report(sample, outcome)
        status = RewardStatus.TIMED_OUT if outcome.kind == TIMED_OUT else RewardStatus.FAILED
        metadata = {**sample.metadata, ERROR_KEY: outcome.reason}
        return sample.but(reward_status=status, score=None, metadata=metadata)

    def _report(self, sample: Sample, failure: Failure) -> None:
        """Logs the first failure of each kind; the metrics count the others."""
        if failure.kind in self._logged:
            return
        self._logged.add(failure.kind)
        where = f"prompt {sample.prompt.prompt_id!r}, sample {sample.index}"
        _log.warning("Reward %s gave no score for %s: %s", self._name, where, failure.reason)
        if failure.trace:
            _log.info("%s", failure.trace)


@dataclass(frozen=True, eq=False)
class _PendingGroup:
    """A group to judge, and what comes of it; cancelled where nobody waits for that any more."""

    samples: list[Sample]
    outcomes: asyncio.Future[list[ScoreOrFailure]] = field(default_factory=asyncio.Future)

    def answer(self, outcomes: list[ScoreOrFailure]) -> None:
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)

    def fail(self, error: Exception) -> None:
        if not self.outcomes.done():
            self.outcomes.set_exception(error)

    def failed(self, kind: str, reason: str) -> None:
        """No sample has a score."""
        self.answer([Failure(kind=kind, reason=reason)] * len(self.samples))


class _Worker:
    """One process, forked anew after a time-out or its death; judges groups one after another.

    `is_quick`: it judged the last ones in less than `QUICK_S` each.
    `kill` alone may come from another thread, at any moment, and is final.
    """

    def __init__(self, forks: ConnectedForks, name: str, timeout: float) -> None:
        self._forks, self._name, self._timeout = forks, name, timeout
        self._child: ConnectedProcess | None = None
        self._is_busy = False
        self._killed = False
        self._lock = threading.Lock()
        self.is_quick = False

    async def start(self) -> None:
        """Forks the process and waits until the rewards are built.

        Raises PluginError with the reason where they cannot be, RunError once the worker was killed.
        """
        with self._busy():
            await self._start()

    async def judge(self, groups: deque[_PendingGroup]) -> None:
        """Answers `groups` with their scores, or the reason why there are none, and takes them away.

        The group over which the process ends has none; those behind it stay. An unforeseen error is that of
        all groups, and the end of the worker.
        """
        if not groups:
            return
        with self._busy():
            try:
                if self._child is None:
                    await self._start()
                await self._ask(groups)
            except RlcoreError as error:
                groups.popleft().failed("start", str(error))
            except Exception as error:  # unforeseen: the process may be within an answer
                while groups:  # or their askers would wait for ever
                    groups.popleft().fail(error)
                self.kill()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Within, the process is in use: who kills it leaves the rest to the end."""
        with self._lock:
            self._is_busy = True
        try:
            yield
        finally:
            with self._lock:
                self._is_busy = False
                if self._killed:
                    self._release()

    async def _start(self) -> None:
        try:
            # In a thread: it may have to start a fork server first, or to wait for another worker that does.
            child = await asyncio.to_thread(self._forks.fork)
        except OSError as error:
            raise RunError(f"A worker of reward {self._name} did not start ({one_line(error)}).") from error
        with self._lock:
            self._child = child
            if child is None or self._killed:  # while it was forked: `kill` has not seen this process
                if child is not None:
                    child.kill()
                raise RunError("The reward pool has been stopped.")
        try:
            async with asyncio.timeout(START_LIMIT_S):
                failure: Failure | None = await child.receive()
        except (OSError, EOFError) as error:
            if not child.is_forked:  # the fork server itself hangs, in an import for example
                await asyncio.to_thread(self._forks.renew)
            ended = await self._end(EXIT_GRACE_S)
            if isinstance(error, TimeoutError):
                ended = f"it took longer than {START_LIMIT_S:g} s"
            raise RunError(f"A worker of reward {self._name} did not start ({ended}).") from error
        if failure is not None:
            await self._end(0)
            raise PluginError(failure.reason)

    def kill(self) -> None:
        """Ends the process for good; a group that it judges gets Failures."""
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()
                self._child.wake()
            # In use, it is closed by `_busy`: the event loop still watches its descriptor, whose number a new
            # file could get.
            if not self._is_busy:
                self._release()

    def _release(self) -> None:
        """Gives the process up; the lock is held."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    async def _ask(self, groups: deque[_PendingGroup]) -> None:
        begin, count, self.is_quick = time.monotonic(), len(groups), False
        try:
            await self._exchange(groups)
            self.is_quick = time.monotonic() - begin < QUICK_S * count
        except TimeoutError:  # before OSError, which includes it
            await self._end(0)
            reason = f"the reward took longer than {self._timeout:g} s for its group (--reward-timeout)"
            groups.popleft().failed(TIMED_OUT, reason)
        except (OSError, EOFError):
            ended = await self._end(EXIT_GRACE_S)
            groups.popleft().failed("died", f"the reward's process ended ({ended})")

    async def _exchange(self, groups: deque[_PendingGroup]) -> None:
        """Sends `groups`, and answers each as its scores come."""
        child = self._child
        assert child is not None
        # Beside the reading: both pipes may be full, and then each side would wait for the other.
        sending = asyncio.create_task(child.send(b"".join(_messages(groups))))
        try:
            while groups:
                async with asyncio.timeout(self._timeout):  # of each group, not of all of them
                    outcomes: list[ScoreOrFailure] = await child.receive()
                groups.popleft().answer(outcomes)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _end(self, grace_s: float) -> str:
        """Kills what is left of the process, which gets `grace_s` to end by itself; says how it ended."""
        assert self._child is not None
        code = await asyncio.to_thread(_ended, self._child, grace_s)
        with self._lock:
            if self._killed:
                return "the reward pool was stopped"
            self._release()
        if code is None:
            return "it was killed"
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _messages(groups: deque[_PendingGroup]) -> list[bytes]:
    """What is sent for each of `groups`; one that cannot be sent fails, and is taken away."""
    messages: list[bytes] = []
    for group in tuple(groups):
        try:
            messages.append(message(group.samples))
        except Exception as error:  # pickle raises what it likes
            group.fail(error)
            groups.remove(group)
    return messages


def _ended(process: ConnectedProcess, grace_s: float) -> int | None:
    """The exit code of a process that ends within `grace_s`; it is killed in any case."""
    code = process.exit_code(grace_s)
    process.kill()
    process.exit_code(EXIT_GRACE_S)
    return code
