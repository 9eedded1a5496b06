"""Plugin file: ends a run whose driver or train worker collects no garbage once it has started."""

import gc
from collections.abc import Iterable, Mapping

from rlcore import Callback, Component, Config, Json, ModelHook, ModelView, RunControl, hookimpl


class InDriver(Callback):
    """Looks after each step."""

    def __init__(self, config: Config) -> None:
        pass

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        assert gc.isenabled()
        return None


class InWorker(ModelHook):
    """Looks before each step."""

    def __init__(self, config: Config) -> None:
        pass

    def before_step(self, step: int, model: ModelView) -> None:
        assert gc.isenabled()


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    yield Component(name="driver_collects", factory=f"{__name__}:InDriver", summary="looks at the driver")


@hookimpl
def rlcore_model_hooks() -> Iterable[Component]:
    yield Component(name="worker_collects", factory=f"{__name__}:InWorker", summary="looks at a worker")
