"""`Answers`: what the page asks for, by path. The server answers with it, and a report holds it."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from rlcore import ConfigError, Json
from rlcore_view.run_folder import RunFolder, runs_in

OF_POLICY = ("train", "engine", "rollout")
"""The tables whose metrics a further policy has as its own."""


class Answers:
    """About some runs, which are told apart by their place in the list. New ones come at its end."""

    def __init__(self, paths: Sequence[Path], *, folders: bool = False) -> None:
        """Raises `ConfigError` for what is no run, and for one that is named twice.

        `folders`: a folder of runs stands for all of them, those that come later too.
        """
        self._folders = [path for path in paths if folders and runs_in(path)]
        self.runs = [RunFolder(path) for path in paths if path not in self._folders]
        for place, path in enumerate(paths):
            if path.resolve() in [other.resolve() for other in paths[:place]]:
                raise ConfigError(f"{path}: is named twice.")
        self._look()

    def _look(self) -> None:
        """Add the runs that the folders have got meanwhile."""
        known = {run.path.resolve() for run in self.runs}
        found = [path for folder in self._folders for path in runs_in(folder)]
        self.runs += [RunFolder(path) for path in found if path.resolve() not in known]

    def states(self) -> list[Json]:
        """How far each run is; None: its folder is gone."""
        self._look()
        return [None if run.is_gone else run.state() for run in self.runs]

    def note(self, path: str, notes: Json) -> None:
        """Keep the tags and the note of the run N of `run/N`: the one thing that the page may write.

        ValueError for what is no note. KeyError: there is no such run.
        """
        match path.split("/"):
            case ["run", number]:
                return self.runs[_whole(number, len(self.runs))].write_notes(notes)
        raise KeyError(path)

    def of(self, path: str) -> Json:
        """KeyError: there is nothing of that name.

        `runs`; `metrics`; `reference`; of run N, `run/N/` and `series`, `alerts`, `dropped`, `settings`,
        `trace`, `trace/STEP`, `spread`, `samples`, `samples/FILE`, `samples/FILE/ROW`, `logs`, `logs/FILE`.
        """
        match path.split("/"):
            case ["runs"]:
                return self.states()
            case ["metrics"]:
                return described(name for run in self.runs for name in run.metrics.columns)
            case ["reference"]:
                return reference()
            case ["run", number, *rest]:
                return _of_run(self.runs[_whole(number, len(self.runs))], rest)
        raise KeyError(path)


def _of_run(run: RunFolder, rest: list[str]) -> Json:
    match rest:
        case ["series"]:
            run.metrics.read()
            return run.metrics.as_json()
        case ["alerts"]:
            run.metrics.read()
            return run.metrics.alerts()
        case ["dropped"]:
            run.metrics.read()
            return run.metrics.lost()
        case ["settings"]:
            return {"settings": run.settings(), "versions": run.versions()}
        case ["trace"]:
            return run.trace.overview()
        case ["trace", step]:
            return run.trace.step(_whole(step))
        case ["spread"]:
            return run.samples.spread()
        case ["samples"]:
            return run.samples.files()
        case ["samples", name]:
            return run.samples.rows(name)
        case ["samples", name, row]:
            return run.samples.sample(name, _whole(row))
        case ["logs"]:
            return run.logs()
        case ["logs", name]:
            return run.log(name)
    raise KeyError("/".join(rest))


def _whole(text: str, below: int | None = None) -> int:
    if not (text.isascii() and text.isdigit()) or (below is not None and int(text) >= below):
        raise KeyError(text)
    return int(text)


def described(names: Iterable[str]) -> Json:
    """Name → `[text, page, key]` of each page that describes it, by the key that says most of the name.

    The metrics of a further policy are described as those of the run's own.
    """
    return {name: texts for name in sorted(set(names)) if (texts := _texts(name))}


def reference() -> Json:
    """`[key, text, page]` of every metric that the documentation explains."""
    file = resources.files("rlcore_view") / "metrics.json"
    return json.loads(file.read_text("utf-8"))


def _texts(name: str) -> list[list[str]]:
    tables = OF_POLICY if name.startswith("policy.") else ()
    same = (name, *(f"{table}/{name.partition('/')[2]}" for table in tables))
    matching = [(length, rest) for names, length, *rest in _known() if any(map(names.fullmatch, same))]
    most = max((length for length, _ in matching), default=0)
    return [rest for length, rest in matching if length == most]


@cache
def _known() -> list[tuple[re.Pattern[str], int, str, str, str]]:
    """Pattern of names, what it says of them in characters, text, page and key.

    A placeholder, as in `eval/<set>/score`, stands for anything without a slash.
    """
    known = []
    for key, text, page in reference():
        parts = re.split(r"<[^>]+>", key)
        pattern = re.compile("[^/]+".join(map(re.escape, parts)))
        known.append((pattern, sum(map(len, parts)), text, page, key))
    return known
