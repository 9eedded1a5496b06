"""`RunFolder`: what the folder of one run says, while the run goes on or after it."""

from __future__ import annotations

import time
from pathlib import Path

from rlcore import (
    METRICS_FILE,
    SAMPLES_FOLDER,
    ConfigError,
    Json,
    parse_json,
    read_settings,
    without_secrets,
)
from rlcore_view.metrics import Metrics
from rlcore_view.samples import Samples
from rlcore_view.trace import Trace

LOG_BYTES = 64 * 2**10
"""Of the end of a log that is shown."""


class RunFolder:
    """Reads only. What is missing or broken is left out, and said."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where `path` is no run."""
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such folder, expected that of a run.")
        if not (path / "run.toml").is_file():
            raise ConfigError(f"{path}: no run.toml in it, so it is not a run of rlcore.")
        self.path = path
        self.metrics = Metrics(path / METRICS_FILE)
        self.samples = Samples(path / SAMPLES_FOLDER)
        self.trace = Trace(path)

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.resolve().name

    def state(self) -> dict[str, Json]:
        """How far it has come."""
        self.metrics.read()
        return {
            "name": self.name,
            "path": str(self.path),
            "step": self.metrics.last_step,
            "steps": self.settings().get("steps"),
            "age": self._age(),
            "ended": self.trace.ended(),
            "reward": self.metrics.last("rollout/reward_mean"),
            "broken": self.metrics.broken,
        }

    def settings(self) -> dict[str, Json]:
        """Every setting by its dotted name, without secrets; empty where the file cannot be read."""
        try:
            return without_secrets(read_settings(self.path / "run.toml", "run.toml"))
        except ConfigError:
            return {}

    def versions(self) -> dict[str, str]:
        """Of the plugins and libraries, at the run's last start."""
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

    def _age(self) -> float | None:
        """Seconds since the last row."""
        try:
            return max(0.0, time.time() - (self.path / METRICS_FILE).stat().st_mtime)
        except OSError:
            return None
