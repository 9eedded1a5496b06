"""`Answers`: what the page asks for, by path. The server answers with it, and a report holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlcore import ConfigError, Json
from rlcore_view.descriptions import described, reference
from rlcore_view.run_folder import RunFolder


class Answers:
    """About some runs, which are told apart by their place in the list."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `ConfigError` for what is no run, and for one that is named twice."""
        self.runs = [RunFolder(path) for path in paths]
        for place, path in enumerate(paths):
            if path.resolve() in [other.resolve() for other in paths[:place]]:
                raise ConfigError(f"{path}: is named twice.")

    def of(self, path: str) -> Json:
        """KeyError: there is nothing of that name.

        `runs`; `metrics`; `reference`; of run N, `run/N/` and `series`, `dropped`, `settings`, `trace`,
        `trace/STEP`, `samples`, `samples/FILE`, `samples/FILE/ROW`, `logs`, `logs/FILE`.
        """
        match path.split("/"):
            case ["runs"]:
                return [run.state() for run in self.runs]
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
        case ["dropped"]:
            run.metrics.read()
            return run.metrics.lost()
        case ["settings"]:
            return {"settings": run.settings(), "versions": run.versions()}
        case ["trace"]:
            return run.trace.overview()
        case ["trace", step]:
            return run.trace.step(_whole(step))
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
