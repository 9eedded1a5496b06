"""`Serving`: the engines, frozen models and rollout workers of a run, or of an evaluation alone."""

from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rlcore.api.cluster import Cluster
from rlcore.preparation.prepared import Served
from rlcore.serving.engine_group import EngineGroup
from rlcore.serving.frozen_group import FrozenGroup
from rlcore.serving.placement import Placement
from rlcore.workers.rollout_workers import RolloutWorkers
from rlcore_machine.reaper import Reaper


class Serving:
    """The stack that is given ends them, the engines last, because the others may still ask them.

    `chosen`, `evals`: what was prepared, where rewards know the URLs of the frozen models.
    """

    def __init__(
        self,
        cluster: Cluster,
        placement: Placement,
        served: Served,
        reaper: Reaper,
        stack: AsyncExitStack,
        sources: Sequence[Sequence[int]] = (),
    ) -> None:
        """`sources`: as of `EngineGroup`."""
        self.engines = EngineGroup(cluster, placement.engines, served, reaper, sources)
        stack.push_async_callback(self.engines.stop)
        self.frozen = FrozenGroup(cluster, placement.frozen, served, self.engines.spares)
        stack.push_async_callback(self.frozen.stop)
        stack.push_async_callback(served.generators.close)
        self.generators = RolloutWorkers(
            cluster,
            placement.rollouts,
            served.generators,
            files=served.resolved.plugin_files,
            tokenizer=served.model.path,
            limits=served.resolved.run.limits,
        )
        stack.push_async_callback(self.generators.stop)
        self.chosen = self.frozen.placed(served.resolved)
        self.evals = self.frozen.placed_evals(served.evals)

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """Each raises when a process is lost for good, and never returns."""
        return [self.engines.watch(), self.frozen.watch(), self.generators.watch()]
