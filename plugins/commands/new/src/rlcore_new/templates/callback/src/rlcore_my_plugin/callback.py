"""The callback `my_plugin`."""

import time
from collections.abc import Mapping

from rlcore import Callback, Json, RunControl

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin(Callback):
    """Counts the time of the run, over all of its starts."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._minutes = config.minutes
        self._begin = time.monotonic()

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """Ends the run with the step that passes the limit."""
        minutes = (time.monotonic() - self._begin) / 60
        if minutes < self._minutes:
            return None
        return RunControl(stop=f"{minutes:.1f} minutes, at least {self._minutes:g}")

    def state(self) -> Json:
        """Seconds so far, for the checkpoint."""
        return time.monotonic() - self._begin

    def load(self, state: Json) -> None:
        """A resumed run goes on to count."""
        self._begin = time.monotonic() - state
