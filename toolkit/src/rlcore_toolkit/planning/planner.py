"""What `rlcore plan` asks the planner of a trainer, which `TrainerConfig.planner` names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlcore_toolkit.planning.run_file import RunFile
from rlcore_toolkit.planning.units import GB

MARGIN = 0.1
"""Share of a GPU that is left to CUDA, NCCL and fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`gpus` in all, `per_node` in a node, of `memory` bytes each; `host`: bytes of a node's own memory.

    Bytes a second: `gpu_bandwidth` of a GPU's memory, `network` of a node; 0: not known.
    """

    gpus: int
    memory: int
    per_node: int = 8
    host: int | None = None
    gpu_bandwidth: int = 0
    network: int = 0

    @property
    def usable(self) -> int:
        """Bytes of a GPU that are planned with: memory · (1 - MARGIN)."""
        return int(self.memory * (1 - MARGIN))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Bytes of each thing that is on a GPU at the same time, and of what there may be.

    `room`: the share of the requests in flight that an engine's cache holds at once. `is_apart`: on GPUs
    without the policy, whose layout does not change it.
    """

    name: str
    items: Mapping[str, int]
    limit: int
    note: str = ""
    room: float = 1.0
    is_apart: bool = False

    @property
    def total(self) -> int:
        return sum(self.items.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    def needs(self, when: str = "") -> str:
        """What it needs and what takes most, for a sentence; `when`: behind the bytes."""
        most = max(self.items, key=lambda name: self.items[name])
        return (
            f"needs {self.total / GB:.1f} GB of {self.limit / GB:.1f} GB{when}, "
            f"{self.items[most] / GB:.1f} GB of it for {most}"
        )

    @property
    def record(self) -> Mapping[str, Any]:
        """Its part of `--json`."""
        note = {"note": self.note} if self.note else {}
        return {
            "name": self.name,
            "items": dict(self.items),
            "total": self.total,
            "limit": self.limit,
            **note,
        }


def shortage(phases: Sequence[Phase], host: int, machines: Machines) -> str:
    """What the phase needs that misses most, or the host; empty: all fits. `host`: bytes of a node."""
    over = [phase for phase in phases if not phase.fits]
    if over:
        worst = max(over, key=lambda phase: phase.total - phase.limit)
        return worst.needs("" if worst.name == "train" else f" to {worst.name}")
    if machines.host is not None and host > machines.host:
        return f"needs {host / GB:.0f} GB of host memory of {machines.host / GB:.0f} GB"
    return ""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """Which layouts of `model` fit on `machines`, in a run with the settings of `file`.

    `sizes`: the parallel sizes to keep, by their flags (`tp`). `recompute`: whether the backward pass
    computes layers again; None: where it must.
    """

    file: RunFile
    model: str
    machines: Machines
    sizes: Mapping[str, int]
    recompute: bool | None


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What bandwidth allows at best.

    `rollout`, `publication`: seconds at least. `tokens`: most tokens a second of the slowest engines. None:
    not known.
    """

    rollout: float | None = None
    tokens: float | None = None
    publication: float | None = None


class PlannedLayout(Protocol):
    """A layout, what its fullest rank needs, and why it cannot be or does not fit."""

    @property
    def name(self) -> str:
        """Such as `TP 2, DP 8`."""

    @property
    def ranks(self) -> int:
        """GPUs of the trainer."""

    @property
    def reason(self) -> str:
        """Why it cannot be, or does not fit; empty: it fits."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Mark behind the name → footnote."""

    @property
    def parts(self) -> Mapping[str, int]:
        """Column of the table → bytes; empty: it cannot be. With `total`."""

    @property
    def phases(self) -> Sequence[Phase]:
        """What is on the fullest GPU in each phase of a step."""

    @property
    def host(self) -> int:
        """In the memory of a node."""

    @property
    def engines(self) -> str:
        """Such as `, 2 engines of 8 GPUs`; empty: none are planned."""

    def stages(self) -> Mapping[str, Mapping[str, int]]:
        """Pipeline stage → column of a table → bytes; the same stages once."""

    def explanation(self) -> Sequence[str]:
        """What each number is made of, one line each."""

    def flags(self, other: Any = None) -> str:
        """What `rlcore train` is given; `other`: the layout that the run file beside these flags says."""

    def record(self) -> Mapping[str, Any]:
        """Its part of `--json`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of a planner.

    `layouts`: of a search all, the best first; of a run file its own. `nearest`: where none fits, one that
    does. `apart`: what no layout of the policy mends. `dtype`: of the weights. `publication`: bytes that
    reach an engine with each publication. `cache`: bytes of a token in an engine's KV cache. `workload`: for
    `--json`. `most_gpus`: of a search for more GPUs than there are. `smaller`: the largest published size
    that fits where the model does not.
    """

    parameters: int
    active: int
    dtype: str
    publication: int
    cache: int
    workload: Mapping[str, Any]
    layouts: Sequence[PlannedLayout]
    nearest: PlannedLayout | None = None
    most_gpus: int = 0
    smaller: str = ""
    apart: Sequence[str] = ()
    bounds: Bounds = field(default_factory=Bounds)


class Planner(Protocol):
    """Counts the bytes of a trainer's layouts. It starts nothing, and makes no tensor of the model's size."""

    def search(self, question: PlanQuestion) -> Plan:
        """Every layout on the machines. Raises `ConfigError` for a size that cannot be."""

    def judge(self, file: RunFile, model: str, machines: Machines, gpus: int | None) -> Plan:
        """The layout of a run file. `gpus`: of the whole run. Raises `ConfigError`."""
