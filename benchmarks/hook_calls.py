"""What a step pays for its trackers and callbacks, next to writing its row as JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from common import Row, machine, parser, publish, table

from rlcore.api.callback import Callback
from rlcore.api.config import Config
from rlcore.api.tracker import RunInfo, Tracker
from rlcore.api.types import Json, Prompt, Sample
from rlcore.runtime.callbacks import Callbacks
from rlcore.tracking.trackers import Trackers
from rlcore_jsonl.tracker import Jsonl
from rlcore_testing.display import SilentDisplay

KEYS, SAMPLES = 60, 256
ROW: dict[str, Json] = {"step": 1, **{f"train/metric_{number}": number / 3 for number in range(KEYS)}}


class Counting(Tracker):
    """Does nothing with what it is told, and counts it."""

    def __init__(self) -> None:
        self.told = 0

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """One more."""
        self.told += 1


def main() -> None:
    """Median microseconds of a step's calls with 0, 1 and 4 of each kind."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=2000, help="steps of each measurement")
    args = options.parse_args()
    facts = machine(args.threads)
    as_json = _median(lambda: json.dumps(ROW), args.repeats)
    rows: list[Row] = [
        {"what": f"`json.dumps` of a row of {KEYS} metrics", "µs a step": as_json, "times that": 1}
    ]
    for count in (0, 1, 4):
        callbacks = Callbacks({f"c{number}": Callback() for number in range(count)})
        found = _median(partial(callbacks.after_step, 1, ROW), args.repeats)
        rows.append(_row(f"`after_step` of {count} callbacks", found, as_json))
    for count in (0, 1, 4):
        rows.append(
            _row(f"rollout and metrics to {count} trackers", _telling_s(count, args.repeats), as_json)
        )
    rows.append(_row("the same to `jsonl`, written to the disk", _written(args.work, args.repeats), as_json))
    publish("hook_calls", facts, {"rows": rows}, table(rows), dry=args.dry)


def _telling_s(count: int, repeats: int) -> float:
    """Each tracker has taken what it was told before the next step begins."""
    counting = {f"t{number}": Counting() for number in range(count)}
    trackers = _started(Trackers(counting, SilentDisplay()), Path())
    told = 0

    def taken() -> None:
        nonlocal told
        told += 1
        while any(one.told < told for one in counting.values()):
            time.sleep(0)

    found = _median(lambda: _tell(trackers), repeats, taken)
    trackers.end("completed")
    return found


def _written(folder: Path, repeats: int) -> float:
    folder.mkdir(parents=True, exist_ok=True)
    trackers = _started(Trackers({"jsonl": Jsonl(Config())}, SilentDisplay()), folder)
    found = _median(lambda: _tell(trackers), repeats)
    trackers.end("completed")
    return found


def _started(trackers: Trackers, folder: Path) -> Trackers:
    trackers.start(RunInfo(folder=folder, settings={}, plugins={}, step=0))
    return trackers


_PROMPT = Prompt(prompt_id="p", text="")
_TRAINED = [
    Sample(prompt=_PROMPT, prompt_ids=(), group_id=0, index=number, rollout_id="r")
    for number in range(SAMPLES)
]


def _tell(trackers: Trackers) -> None:
    trackers.rollout(1, _TRAINED)
    trackers.metrics(ROW)


def _median(call: Callable[[], object], repeats: int, between: Callable[[], None] | None = None) -> float:
    """Microseconds of a call; what happens between two of them is not counted."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
        if between is not None:
            between()
    return statistics.median(seconds) * 1e6


def _row(what: str, found: float, as_json: float) -> Row:
    return {"what": what, "µs a step": found, "times that": found / as_json}


if __name__ == "__main__":
    main()
