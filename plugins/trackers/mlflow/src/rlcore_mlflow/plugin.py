"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_mlflow.config import MlflowConfig


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """MLflow."""
    yield Component(
        name="mlflow", factory="rlcore_mlflow.tracker:Mlflow", summary="a run of MLflow", config=MlflowConfig
    )
