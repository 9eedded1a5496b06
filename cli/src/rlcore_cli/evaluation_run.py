"""`evaluate`: engines, rewards and named sets, without a trainer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.preparation.run_folder import run_folder
from rlcore.runtime.connect import connect, opened
from rlcore.tracking.run_files import SAMPLES_FOLDER, write_samples
from rlcore_machine import settle_heap
from rlcore_machine.reaper import Reaper, scratch
from rlcore_machine.signals import signals_raise
from rlcore_machine.tasks import first, together

if TYPE_CHECKING:
    from rlcore.api.cluster import Cluster
    from rlcore.compose.resolved import Inference
    from rlcore.data.prompt_tokenizer import PromptTokenizer
    from rlcore.preparation.prepared import Served
    from rlcore.rollout.evaluate import EvalResult
    from rlcore.tracking.display import Display

FILE = "eval.jsonl"


@dataclass(frozen=True, kw_only=True)
class EvalSummary:
    """`eval`: score and metrics of each set by its name. `samples`: the file of all answers."""

    model: str
    eval: Mapping[str, Mapping[str, float]]
    prompts: Mapping[str, int]
    samples: str
    seconds: float

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def evaluate(chosen: Inference, *, run_dir: Path | None, display: Display) -> EvalSummary:
    """Answer and judge every set, with the weights of the model's directory.

    Raises `UserError` before any process is started, `RunError` afterwards; everything that was started is
    stopped.
    """
    begin = time.monotonic()
    with (
        contextlib.ExitStack() as held,
        signals_raise(),
        opened(chosen.cluster, (chosen.engine,)) as (cluster, reaper),
        run_folder(run_dir, held, f"eval-{Path(chosen.model.name).name}") as folder,
    ):
        # Torch comes with these. Meanwhile the cluster imports what its processes need.
        from rlcore.preparation.prepare import prepare_served
        from rlcore.serving.placement import cpus_of, served_bundles

        display.phase("Checking the model, the data and the parts")
        served = prepare_served(chosen, folder.resolve())
        display.phase(f"Connecting to the cluster {chosen.cluster.name}")
        connect(cluster, reaper, cpus=cpus_of(served_bundles(served)))
        results = asyncio.run(_evaluate(served, cluster, reaper, display))
        file = folder / SAMPLES_FOLDER / FILE
        write_samples(file, {name: result.samples for name, result in results.items()})
    return EvalSummary(
        model=chosen.model.name,
        eval={name: {"score": result.score, **result.metrics} for name, result in results.items()},
        prompts={evaluation.name: len(evaluation.prompts) for evaluation in served.evals},
        samples=str(file),
        seconds=round(time.monotonic() - begin, 3),
    )


async def _evaluate(
    served: Served, cluster: Cluster, reaper: Reaper, display: Display
) -> dict[str, EvalResult]:
    from rlcore.rollout.evaluate import Evaluator
    from rlcore.runtime.evaluations import evaluations
    from rlcore.serving.placement import place_engines
    from rlcore.serving.serving import Serving

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(scratch(reaper))
        display.phase("Starting the engines")
        placement = place_engines(cluster, served)
        serving = Serving(cluster, placement, served, reaper, stack)
        chosen, engines, generators = serving.chosen, serving.engines, serving.generators
        sets = await evaluations(chosen, serving.evals, [], generators, stack, served.model.path)
        limit_s = chosen.run.limits.worker_health_limit
        starting = together([engines.start(), serving.frozen.start(), generators.start()])
        await first([cluster.watch(limit_s), starting])
        settle_heap()
        display.phase(f"Evaluating {', '.join(evaluation.name for evaluation in sets)}")
        encoder: PromptTokenizer = served.encoder
        evaluator = Evaluator(run=chosen.run, encoder=encoder, clients=engines.clients, sets=sets)
        version = await engines.clients[0].weight_version()
        results = asyncio.ensure_future(evaluator.evaluate(version))
        await first([cluster.watch(limit_s), *serving.watches(), results])
        return results.result()
