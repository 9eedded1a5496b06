"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """MLflow."""
    yield Component(
        name="mlflow",
        factory="rlcore_mlflow.tracker:Mlflow",
        summary="a run of MLflow",
        config="rlcore_mlflow.config:MlflowConfig",
    )
