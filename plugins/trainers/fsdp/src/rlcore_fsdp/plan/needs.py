"""What a run needs in each phase of a step, and how it is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlcore_fsdp.plan.servers import Engines
from rlcore_toolkit import (
    ENOUGH,
    LARGE_SHARE,
    SERVED,
    SLEEP_MARKS,
    Machines,
    Phase,
    counted,
    generation,
    shortage,
    size_text,
)

if TYPE_CHECKING:
    from rlcore_fsdp.plan.step import Step, Taken

FLOAT = 4
"""Bytes of a number in fp32."""
RECOMPUTE, ON_HOST = "--trainer.recompute", "--trainer.optimizer-on-host"
RECOMPUTED = f"with every block computed again in the backward pass: {RECOMPUTE}"
HOSTED = f"with the optimizer in host memory: {ON_HOST}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A way to run on `machines`; a `rlcore_toolkit.PlannedLayout`.

    `reference`: bytes of a frozen copy of the model beside it. `bucket`: of one message of a publication.
    `on_host`: the optimizer is.
    """

    step: Step
    taken: Taken
    machines: Machines
    on_host: bool
    reference: int
    bucket: int
    sleep: str = "none"
    served: Engines | None = None
    is_colocated: bool = True

    @property
    def name(self) -> str:
        base = self.step.quantize_base
        return f"DP {self.step.ranks}" + (f", base in {base.upper()}" if base != "none" else "")

    @property
    def ranks(self) -> int:
        return self.step.ranks

    @property
    def marks(self) -> Mapping[str, str]:
        marks = {"*": RECOMPUTED} if self.step.recompute else {}
        marks |= {"†": HOSTED} if self.on_host else {}
        return marks | dict([SLEEP_MARKS[self.sleep]] if self.served and self.sleep != "none" else [])

    @property
    def published(self) -> int:
        """Bytes that reach an engine with each publication."""
        return self.taken.adapted * self.number if self.publishes_adapters else self.served_weights

    @property
    def publishes_adapters(self) -> bool:
        """Whether engines get no other weights."""
        return any(one.travels for one in self.step.adapters)

    @property
    def slots(self) -> int:
        """Bytes of an engine's adapters: SGLang has a slot for each of the policies and one for the base."""
        count = 1 + len(self.step.adapters) if self.publishes_adapters else 0
        return count * self.taken.slot * self.number

    @property
    def served_weights(self) -> int:
        """Bytes of the weights of an engine."""
        return self.taken.parameters * self.number

    @property
    def number(self) -> int:
        """Bytes of a number on its way to an engine."""
        return FLOAT if self.step.dtype == "fp32" else FLOAT // 2

    @property
    def states(self) -> dict[str, int]:
        """Bytes that stay between steps."""
        return {
            "weights": self.taken.weights,
            "gradients": self.taken.gradients,
            "optimizer": 0 if self.on_host else self.taken.optimizer,
            "other models": self.reference,
        }

    @property
    def parts(self) -> Mapping[str, int]:
        held = self.states
        columns = {
            "weights": held["weights"] + held["other models"],
            "grads": held["gradients"],
            "optim.": held["optimizer"],
            "activ.": self.taken.activations,
        }
        return {**columns, "total": sum(columns.values())}

    @property
    def phases(self) -> Sequence[Phase]:
        limit = self.machines.usable
        phases = [
            Phase(name="train", items={**self.states, "activations": self.taken.activations}, limit=limit)
        ]
        if self.served is None:
            return phases
        held = self._awake(self.sleep if self.is_colocated else "none")
        # a bucket that is sent, the next one, and the largest tensor as ranks gather it, beside its parameter
        # that has come back from the host
        copies = 1 if held else 2 if self.step.adapters else 1 + FLOAT // self.number
        held["publication"] = 2 * min(self.bucket, self.published) + copies * self.taken.largest
        if self.is_colocated:
            held[SERVED] = self.served.weights
        phases.append(Phase(name="publish", items=held, limit=limit))
        phases.append(self._generation(self.served))
        return phases

    @property
    def reason(self) -> str:
        """Why it does not fit."""
        return shortage(self.phases, self.host, self.machines)

    @property
    def host(self) -> int:
        """Bytes of a node's host: the optimizer with a copy of what it trains, and what sleeps."""
        taken = self.taken
        own = taken.optimizer + FLOAT * taken.trained if self.on_host else 0
        asleep = self.sleep if self.served and self.is_colocated else "none"
        if asleep != "none":
            own += 0 if self.on_host else taken.optimizer
            own += taken.weights + self.reference if asleep == "all" else 0
        return own * min(self.machines.per_node, self.ranks)

    @property
    def engines(self) -> str:
        if self.served is None:
            return ""
        return f", {counted(self.served.count, 'engine')} of {counted(self.served.gpus, 'GPU')}"

    @property
    def room(self) -> float:
        """The share of the requests that the engines' caches hold at once, as far as it matters."""
        return min([ENOUGH, *(phase.room for phase in self.phases)])

    def stages(self) -> Mapping[str, Mapping[str, int]]:
        return {"1 of 1": self.parts}

    def explanation(self) -> Sequence[str]:
        step, taken = self.step, self.taken
        trained = taken.adapted or taken.parameters
        count = len(step.adapters)
        kind = f"of {count} adapters" if count > 1 else "of the adapter" if count else "of the model"
        base = "" if step.quantize_base == "none" else f", its matrices in {step.quantize_base.upper()}"
        return [
            f"weights: {taken.parameters:,} numbers in {step.dtype}{base}, of which what trains is in fp32, "
            f"over {step.ranks} ranks",
            f"gradients: {trained:,} numbers {kind} in fp32, over {step.ranks} ranks",
            f"optimizer: two moments of each, {size_text(taken.optimizer)} on a rank",
            f"activations: a micro-batch of {step.tokens} tokens, in samples of up to {step.longest}"
            f"{', every block again' if step.recompute else ''}: the most at one time in its forward and "
            "backward pass, with what FSDP gathers",
        ]

    def flags(self, other: Any = None) -> str:
        flags = [f"--ranks {self.ranks}"]
        flags += [RECOMPUTE] if self.step.recompute else []
        flags += [ON_HOST] if self.on_host else []
        flags += [f"--sleep {self.sleep}"] if self.served and self.sleep != "none" else []
        if self.served is not None:
            flags.append(f"--engines {self.served.count} --sglang.tp-size {self.served.gpus}")
            if self.served.share == LARGE_SHARE:
                flags.append(f"--sglang.mem-fraction-static {LARGE_SHARE}")
        return " ".join(flags)

    def record(self) -> Mapping[str, Any]:
        served = self.served
        return {
            "layout": {"world": self.ranks, "recompute": self.step.recompute},
            "fits": not self.reason,
            "reason": self.reason or None,
            "optimizer_on_host": self.on_host,
            "sleep": self.sleep,
            "engines": [{"group": "", "count": served.count, "gpus": served.gpus}] if served else [],
            "memory": {**asdict(self.taken), "reference": self.reference, "total": self.parts["total"]},
            "phases": [phase.record for phase in self.phases],
            "host_bytes_per_node": self.host,
        }

    def _awake(self, sleep: str) -> dict[str, int]:
        """What of the trainer stays on a GPU while its engines generate."""
        held = self.states
        if sleep == "optimizer":
            return {"weights": held["weights"], "other models": held["other models"]}
        return {} if sleep == "all" else held

    def _generation(self, served: Engines) -> Phase:
        return generation(
            self._awake(self.sleep) if self.is_colocated else {},
            self.machines,
            weights=served.weights,
            sequence=max(1, served.cache * served.tokens),
            asked=served.sequences,
            tokens=served.tokens,
            share=served.share,
            is_apart=not self.is_colocated,
        )
