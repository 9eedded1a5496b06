"""A layout for a run, what it needs, and how `rlcore plan` prints it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlcore import ModelFacts
from rlcore_megatron.plan.engines import Engines
from rlcore_megatron.plan.explanation import explain_rank
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_megatron.plan.memory import Memory, of_stage
from rlcore_megatron.plan.phases import Needs, Run
from rlcore_toolkit import LARGE_SHARE, SLEEP_MARKS, Machines, Phase, counted

STARRED = "with every layer computed again in the backward pass"
HOSTED = "with the optimizer's states in host memory: --megatron.optimizer-cpu-offload"
DEFAULT_OF_GPU = Recompute()
"""What the trainer computes again on a GPU where nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A `rlcore_toolkit.PlannedLayout`: `layout` of a model with `facts`, and what it needs on `machines`.

    `run`: the one that it was judged for. `needs` None: it cannot be. `reason`: why, or why it does not fit.
    """

    facts: ModelFacts
    machines: Machines
    layout: Layout
    run: Run
    needs: Needs | None
    reason: str

    @property
    def fits(self) -> bool:
        return not self.reason

    @property
    def memory(self) -> Memory | None:
        """The memory of the fullest rank."""
        return self.needs.memory if self.needs else None

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def ranks(self) -> int:
        return self.layout.world

    @property
    def marks(self) -> Mapping[str, str]:
        layout, run = self.layout, self.run
        marks = {"*": STARRED} if layout.recompute else {}
        marks |= {"†": HOSTED} if run.optimizer.on_host else {}
        return marks | dict([SLEEP_MARKS[run.sleep]] if run.engines and run.sleep != "none" else [])

    @property
    def parts(self) -> Mapping[str, int]:
        if (memory := self.memory) is None:
            return {}
        return {**_states(memory), "activ.": memory.activations + memory.workspace, "total": memory.total}

    @property
    def phases(self) -> Sequence[Phase]:
        return self.needs.phases if self.needs else ()

    @property
    def host(self) -> int:
        return self.needs.host if self.needs else 0

    @property
    def engines(self) -> str:
        return "".join(
            f", {counted(each.count, f'{each.group} engine'.strip())} of {counted(each.gpus, 'GPU')}"
            for each in self.run.engines
        )

    def stages(self) -> Mapping[str, Mapping[str, int]]:
        layout, run, last = self.layout, self.run, self.layout.pipeline - 1
        memories = {
            f"{number + 1} of {last + 1}": of_stage(
                self.facts, layout, run.work, number, run.optimizer, run.roles
            )
            for number in sorted({0, min(1, last), max(0, last - 1), last})
        }
        return {
            name: {
                **_states(memory),
                **{"activ.": memory.activations, "work": memory.workspace, "total": memory.total},
            }
            for name, memory in memories.items()
        }

    def explanation(self) -> Sequence[str]:
        return list(explain_rank(self))

    def flags(self, other: Any = None) -> str:
        layout, run = self.layout, self.run
        sizes = {
            "tensor-model-parallel-size": layout.tensor,
            "pipeline-model-parallel-size": layout.pipeline,
            "context-parallel-size": layout.context,
            "expert-model-parallel-size": layout.expert,
            "expert-tensor-parallel-size": layout.expert_tensor,
        }
        flags = [f"--ranks {layout.world}"]
        flags += [f"--megatron.{name} {size}" for name, size in sizes.items() if size > 1]
        if layout.has_own_first:
            flags.append(f"--megatron.num-layers-in-first-pipeline-stage {layout.stages[0]}")
        if layout.stages:
            flags.append(f"--megatron.num-layers-in-last-pipeline-stage {layout.stages[-1]}")
        flags += ["--megatron.sequence-parallel"] if layout.sequence else []
        flags += ["--megatron.optimizer-cpu-offload"] if run.optimizer.on_host else []
        of_file = other.layout.recompute if other else layout.recompute
        if {layout.recompute, of_file} != {DEFAULT_OF_GPU}:
            flags += _recompute_flags(layout.recompute)
        if of_file is not None and of_file.distributed and of_file != layout.recompute:
            flags.append("--megatron.distribute-saved-activations false")
        before = other.run if other else replace(run, engines=(), sleep="none")
        flags += [f"--sleep {run.sleep}"] if run.sleep != before.sleep else []
        if run.engines != before.engines:
            flags += _engine_flags(run.engines, before.engines, self.machines.per_node)
        return " ".join(flags)

    def record(self) -> Mapping[str, Any]:
        run, memory = self.run, self.memory
        return {
            "layout": asdict(self.layout),
            "fits": self.fits,
            "reason": self.reason or None,
            "optimizer_on_host": run.optimizer.on_host,
            "sleep": run.sleep,
            "engines": [
                {"group": engines.group, "count": engines.count, "gpus": engines.gpus}
                for engines in run.engines
            ],
            "memory": {**asdict(memory), "total": memory.total} if memory else None,
            "phases": [phase.record for phase in self.phases],
            "host_bytes_per_node": self.needs.host if self.needs else None,
        }


def _states(memory: Memory) -> Mapping[str, int]:
    return {"weights": memory.weights, "grads": memory.gradients, "optim.": memory.optimizer}


def _recompute_flags(recompute: Recompute | None) -> list[str]:
    if recompute is None:
        return ["--megatron.recompute-granularity none"]
    method = "block" if recompute.block else "uniform"
    return [
        f"--megatron.recompute-granularity full --megatron.recompute-method {method}",
        f"--megatron.recompute-num-layers {recompute.layers}",
    ]


def _engine_flags(groups: Sequence[Engines], before: Sequence[Engines], per_node: int) -> Iterator[str]:
    """The flags of engines that stand in the place of those `before`."""
    (engines,) = groups
    if before and before[0].gpus == 1:  # an engine of one GPU may be of any kind
        yield "--engine sglang"
    yield f"--engines {engines.count} --sglang.tp-size {engines.tensor}"
    if engines.pipeline != (before[0].pipeline if before else 1):
        yield f"--sglang.pp-size {engines.pipeline}"
    if engines.gpus > per_node:
        yield f"--sglang.nnodes {engines.gpus // per_node}"
    if before and engines.share == before[0].share:
        return
    if engines.share == LARGE_SHARE:
        yield f"--sglang.mem-fraction-static {engines.share}"
