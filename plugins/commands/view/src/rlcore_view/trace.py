"""`trace.json` step by step: what took how long, and every request of one step."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlcore import TRACE_FILES, Json, parse_json

MOST_BARS = 200
"""Bars of the overview; of more steps, each bar is the mean of several."""
MOST_SPANS = 20_000
"""Spans of one step that are shown."""
READ_BYTES = 16 * 2**20
"""How far a step is read: a span stands where it ended, which may be steps later."""
END_BYTES = 4096
"""The bytes at the end of the file that hold the end of the run."""
_RUN = b'"cat": "run"'
_PHASES = ("rollout", "train", "publish", "evaluate", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A span of the loop, in microseconds; `place`: the file's inode, and the byte behind its line."""

    name: str
    begin: float
    end: float
    step: int | None
    place: tuple[int, int]


@dataclass
class _File:
    """What is known of a file so far."""

    inode: int
    offset: int = 0
    phases: list[Phase] = field(default_factory=list)


class Trace:
    """The trace of the run in `folder`, read further while the run goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}

    def ended(self) -> str | None:
        """Why the run has ended, by the end of the file; None where nobody knows, as while it goes on."""
        try:
            with (self._folder / TRACE_FILES[-1]).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
                last = file.read().rstrip().rpartition(b"\n")[2]
        except OSError:
            return None
        event = _event(last) or {}
        return event["args"]["reason"] if event.get("ph") == "i" else None

    def overview(self) -> Json:
        """For each step, or the mean of several, the seconds of each phase. Empty: there is no trace.

        `slowest`: the step of these that took longest, in `longest` seconds.
        """
        steps = list(self._steps(self._read()))
        width = -(-len(steps) // MOST_BARS) or 1
        bars = []
        for start in range(0, len(steps), width):
            part = steps[start : start + width]
            seconds = {name: 0.0 for name in _PHASES}
            for _, phases in part:
                for phase in phases:
                    seconds[phase.name] = seconds.get(phase.name, 0) + (phase.end - phase.begin) / 1e6
            mean = {name: round(value / len(part), 6) for name, value in seconds.items()}
            whole = [(sum(phase.end - phase.begin for phase in phases) / 1e6, -step) for step, phases in part]
            longest, slowest = max(whole)
            about = {"from": part[0][0], "to": part[-1][0], "slowest": -slowest, "longest": round(longest, 6)}
            bars.append({**about, "seconds": mean})
        return bars

    def step(self, number: int) -> Json:
        """Every span that overlaps the step, by its seconds. KeyError: the trace does not have it."""
        files = self._read()
        steps = list(self._steps(files))
        places = [place for place, (step, _) in enumerate(steps) if step == number]
        if not places:
            raise KeyError(str(number))
        place = places[-1]  # a resumed run takes some again
        phases = steps[place][1]
        # an evaluation beside the training may have begun steps before
        first = min(phase.begin for phase in phases)
        begin = next((phase.begin for phase in phases if phase.name == "rollout"), first)
        end = max(phase.end for phase in phases)
        before = steps[place - 1][1][-1].place if place else None
        spans: list[Json] = []
        cut = False
        for event in self._events(files, before):
            start, stop = event["ts"], event["ts"] + event["dur"]
            if stop < begin or start > end:
                continue
            if len(spans) == MOST_SPANS:
                cut = True
                break
            times = {"begin": round((start - begin) / 1e6, 6), "end": round((stop - begin) / 1e6, 6)}
            names = {"track": event["cat"], "lane": event["tid"], "name": event["name"]}
            spans.append({**names, **times, "about": event.get("args", {})})
        return {"step": number, "seconds": (end - begin) / 1e6, "spans": spans, "cut": cut}

    def _read(self) -> list[tuple[Path, _File]]:
        """The files there are, the older first."""
        files = []
        for path in map(self._folder.joinpath, TRACE_FILES):
            try:
                stat = path.stat()
            except OSError:
                continue
            file = self._files.get(stat.st_ino)
            if file is None or stat.st_size < file.offset:
                file = self._files[stat.st_ino] = _File(stat.st_ino)
            _read_on(path, file)
            files.append((path, file))
        self._files = {file.inode: file for _, file in files}
        return files

    @staticmethod
    def _steps(files: list[tuple[Path, _File]]) -> Iterator[tuple[int, list[Phase]]]:
        """The phases of each step, which begins with its rollout; what comes before the first is step 0."""
        phases: list[Phase] = []
        for phase in (phase for _, file in files for phase in file.phases):
            if phase.name == "rollout":
                if phases:
                    yield _number(phases), phases
                phases = []
            phases.append(phase)
        # a rollout alone has just ended, or was never made: the run is over
        if phases and [phase.name for phase in phases] != ["rollout"]:
            yield _number(phases), phases

    @staticmethod
    def _events(files: list[tuple[Path, _File]], before: tuple[int, int] | None) -> Iterator[dict[str, Json]]:
        """The spans whose lines stand behind the place `before`."""
        left = READ_BYTES
        inodes = [file.inode for _, file in files]
        first = inodes.index(before[0]) if before else 0
        for path, known in files[first:]:
            with path.open("rb") as file:
                if before and known.inode == before[0]:
                    file.seek(before[1])
                for line in file:
                    left -= len(line)
                    event = _event(line)
                    if event is not None and event.get("ph") == "X":
                        yield event
                    if left <= 0:
                        return


def _read_on(path: Path, file: _File) -> None:
    with path.open("rb") as lines:
        lines.seek(file.offset)
        for line in lines:
            if not line.endswith(b"\n"):  # it is being written
                return
            file.offset += len(line)
            if _RUN in line and (event := _event(line)) is not None:
                _add(event, file)


def _add(event: dict[str, Json], file: _File) -> None:
    if event["ph"] == "i":
        return
    begin, place = event["ts"], (file.inode, file.offset)
    end, step = begin + event["dur"], event["args"].get("step")
    file.phases.append(Phase(name=event["name"], begin=begin, end=end, step=step, place=place))


def _number(phases: list[Phase]) -> int:
    return next((phase.step for phase in phases if phase.step), 0)


def _event(line: bytes) -> dict[str, Json] | None:
    """None for what is no event: the brackets, and what a crash cut short."""
    try:
        event = parse_json(line.rstrip(b",\r\n"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and {"ph", "name", "pid"} <= event.keys() else None
