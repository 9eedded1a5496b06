"""`RunFolder`: what the folder of one run says, while the run goes on or after it."""

import contextlib
import fcntl
import json
import os
import struct
import time
from pathlib import Path

from rlcore import (
    METRICS_FILE,
    SAMPLES_FOLDER,
    ConfigError,
    Json,
    parse_json,
    read_settings,
    replace_file,
    without_secrets,
)
from rlcore_view.metrics import Metrics
from rlcore_view.samples import Samples
from rlcore_view.trace import Trace

LOG_BYTES = 64 * 2**10
"""The bytes at the end of a log that are shown."""
FRESH_S = 60
RUN_TOML = "run.toml"
NOTES = "notes.json"
"""The tags and the note that a reader gave the run: the one file that the page writes."""
MOST_TAGS, TAG_LENGTH, NOTE_LENGTH = 20, 40, 4000
_SIGNALS = ("sigterm", "interrupted", "terminated")
_REWARD = "rollout/reward_mean"
_LOCK = ".lock"
_FLOCK = "hhqqi4x"
"""`struct flock` of Linux on 64 bits."""


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder that is none itself, the oldest first."""
    if (folder / RUN_TOML).is_file() or not folder.is_dir():
        return []
    files = [(file.stat().st_mtime, file.parent) for file in folder.glob(f"*/{RUN_TOML}")]
    return [path for _, path in sorted(files)]


class RunFolder:
    """Reads all but `notes.json`. What is missing or broken is left out, and said."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where `path` is no run."""
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such folder, expected that of a run.")
        if not (path / RUN_TOML).is_file():
            raise ConfigError(f"{path}: no {RUN_TOML} in it, so it is not a run of rlcore.")
        self.path = path
        self.metrics = Metrics(path / METRICS_FILE)
        self.samples = Samples(path / SAMPLES_FOLDER)
        self.trace = Trace(path)
        self._settings: tuple[int, dict[str, Json]] = (0, {})

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def state(self) -> dict[str, Json]:
        """How far it has come, from the ends of its files: a folder may hold hundreds of runs."""
        settings, ended = self.settings(), self.trace.ended()
        rows = self.metrics.newest()
        return {
            "name": self.name,
            "path": str(self.path),
            "step": rows[-1]["step"] if rows else None,
            "steps": settings.get("steps"),
            "when": self._when(),
            "ended": ended,
            "status": self._status(ended),
            "reward": next((row[_REWARD] for row in reversed(rows) if _REWARD in row), None),
            "model": settings.get("model"),
            "algo": settings.get("algo"),
            **self.notes(),
        }

    def _status(self, ended: str | None) -> str:
        """`running`, `ended`, `failed`; `stopped`: by a signal, or without a word.

        A run holds its lock. On a file system without locks, one with a new row goes on.
        """
        if _is_locked(self.path / _LOCK):
            return "running"
        if ended is not None:
            return "failed" if ended == "failed" else "stopped" if ended in _SIGNALS else "ended"
        return "running" if time.time() - (self._when() or 0) < FRESH_S else "stopped"

    def notes(self) -> dict[str, Json]:
        """`tags` and `note`; empty where there are none."""
        try:
            return _checked(parse_json((self.path / NOTES).read_bytes()))
        except (OSError, ValueError):
            return {"tags": [], "note": ""}

    def write_notes(self, notes: Json) -> None:
        """Keep `tags` and `note`. ValueError for anything else, KeyError where the run is gone."""
        found = _checked(notes)
        if self.is_gone:
            raise KeyError(self.name)
        with replace_file(self.path / NOTES) as draft:
            draft.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def is_gone(self) -> bool:
        """Whether the folder is no run any more."""
        return not (self.path / RUN_TOML).is_file()

    def settings(self) -> dict[str, Json]:
        """Every setting by its dotted name, without secrets; empty where the file cannot be read."""
        try:
            written = (self.path / RUN_TOML).stat().st_mtime_ns
            if self._settings[0] != written:
                found = without_secrets(read_settings(self.path / RUN_TOML, RUN_TOML))
                self._settings = (written, found)
        except (ConfigError, OSError):
            return {}
        return self._settings[1]

    def versions(self) -> dict[str, str]:
        """The versions of plugins and libraries, at the run's last start."""
        try:
            lines = (self.path / "provenance.jsonl").read_text(encoding="utf-8").splitlines()
            start = parse_json(lines[-1])
            plugins = {f"plugin {name}": about["version"] for name, about in start["plugins"].items()}
            return {**plugins, **start["libraries"]}
        except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError):
            return {}

    def logs(self) -> list[str]:
        """Names of the files in `logs/`."""
        folder = self.path / "logs"
        return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

    def log(self, name: str) -> Json:
        """The end of a log. KeyError."""
        if name not in self.logs():
            raise KeyError(name)
        path = self.path / "logs" / name
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode(errors="replace")
        # of a progress bar what a terminal would show in the end
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return {"text": "\n".join(lines), "is_cut": size > LOG_BYTES}

    def _when(self) -> float | None:
        """Seconds since 1970 of the last row, or of the start where there is none yet."""
        for name in (METRICS_FILE, RUN_TOML):
            with contextlib.suppress(OSError):
                return (self.path / name).stat().st_mtime
        return None


def _is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a run that goes on. It only asks, and takes no lock."""
    try:
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return False
    return bool(kind != fcntl.F_UNLCK)


def _checked(notes: Json) -> dict[str, Json]:
    """ValueError for what is no note."""
    if not isinstance(notes, dict) or notes.keys() != {"tags", "note"}:
        raise ValueError('expected {"tags": […], "note": "…"}')
    tags, note = notes["tags"], notes["note"]
    if not isinstance(tags, list) or len(tags) > MOST_TAGS or not isinstance(note, str):
        raise ValueError(f"expected at most {MOST_TAGS} tags, and a text")
    if not all(isinstance(tag, str) and 0 < len(tag) <= TAG_LENGTH for tag in tags):
        raise ValueError(f"a tag has 1 to {TAG_LENGTH} characters")
    if len(note) > NOTE_LENGTH:
        raise ValueError(f"a note has at most {NOTE_LENGTH} characters")
    return {"tags": tags, "note": note}
