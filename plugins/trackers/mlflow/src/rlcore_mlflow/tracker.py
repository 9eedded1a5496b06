"""The tracker `mlflow`."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlcore import Json, RunInfo, Sample, Tracker
from rlcore_mlflow.config import MlflowConfig
from rlcore_toolkit import SampleView, require_packages

if TYPE_CHECKING:
    from mlflow import MlflowClient

FOLDER = "mlflow"
ID = "mlflow_id"
"""In the run's folder: by what MLflow knows the run."""
MOST_PARAMS = 100
"""The most parameters of one request to MLflow."""
LONGEST_PARAM = 500


class Mlflow(Tracker):
    """Logs to one run of MLflow, by a client of its own: whatever else uses MLflow here is left alone."""

    def __init__(self, config: MlflowConfig) -> None:
        """Raises `MissingPackageError` without mlflow or matplotlib."""
        require_packages("--tracker mlflow", "rlcore-mlflow[client]", "mlflow", "matplotlib")
        self._config = config
        self._client: MlflowClient
        self._id: str

    def start(self, run: RunInfo) -> None:
        """A resumed run goes on in the same one."""
        uri = self._config.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            uri = (run.folder / FOLDER).resolve().as_uri()
        if uri.startswith("file:"):
            # MLflow wants to be told that a folder is meant, for it would rather have a database
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=uri)
        place = run.folder / ID
        if run.step and place.exists():
            self._id = place.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        title = self._config.experiment
        experiment = self._client.get_experiment_by_name(title)
        of = experiment.experiment_id if experiment else self._client.create_experiment(title)
        tags = {f"plugin.{name}": version for name, version in run.plugins.items()}
        name = self._config.run_name or run.folder.name
        self._id = self._client.create_run(of, run_name=name, tags=tags).info.run_id
        place.write_text(self._id)
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in run.settings.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + MOST_PARAMS])

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """Every number under its name."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = [
            Metric(_key(name), float(value), now, step)
            for name, value in metrics.items()
            if isinstance(value, int | float)
        ]
        self._client.log_batch(self._id, metrics=numbers)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """The first answers of each set as a table, and how its scores and lengths are distributed."""
        for name, of_set in samples.items():
            self._show(f"{name}-{step}", SampleView(of_set))

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """The same of a saved rollout."""
        view = SampleView(samples)
        if view.saved:
            self._show(f"rollout-{step}", view)

    def end(self, reason: str) -> None:
        """The run's status is that of its end."""
        self._client.set_tag(self._id, "exit_reason", reason)
        status = {"failed": "FAILED", "interrupted": "KILLED", "terminated": "KILLED"}.get(reason, "FINISHED")
        self._client.set_terminated(self._id, status)

    def _show(self, name: str, view: SampleView) -> None:
        if view.distributions:
            self._client.log_figure(self._id, view.figure(), f"distribution/{_key(name)}.png")
        if self._config.samples:
            table = {"columns": list(view.COLUMNS), "data": view.rows(self._config.samples)}
            self._client.log_dict(self._id, table, f"samples/{_key(name)}.json")


def _key(name: str) -> str:
    """A name as MLflow takes it: `avg@8` has a character too many."""
    return re.sub(r"[^\w/. :-]", "_", name)
