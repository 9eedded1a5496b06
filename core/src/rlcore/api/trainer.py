"""Kind `trainer`: what builds the models of a run, trains, saves and publishes them.

A `Trainer` is made from its config. The driver asks it about fields, weights and directories. Each train
worker calls `join` once, then `TrainerRank.build` once, then the methods of the models as often as it likes,
and `TrainerRank.stop` at the end. What is called collective below is called by every rank of the process
group, in the same order.

Shape suffixes as in `rlcore.api.maths`: R = sum(R_i), the response tokens of a batch.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.api.batch import TrainBatch

if TYPE_CHECKING:
    from rlcore.api.model_hook import ModelHook, ModelView
    from rlcore.api.optimizer import OptimizerSettings
    from rlcore.api.part import ModelSpec
    from rlcore.api.plugin_file import PluginFile
    from rlcore.api.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class TokenOutputs:
    """The model's view of the n response tokens of a micro-batch, in the micro-batch's order.

    `log_probs` fp32 [n], with gradient: of the distribution divided by the sampling temperature.
    `entropy` fp32 [n], where it was asked for; with gradient only where that was asked for too.
    `chosen` fp32 [n, K], with gradient: log-probs of K tokens in the place of each, where they were named.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    chosen: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """`total`: scalar Σ weight · loss, with its denominators already in the weights: never divided again.

    `metrics`: scalar sums, added over micro-batches and data-parallel ranks.
    """

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step, the same on every rank.

    `loss`, `metrics`: sums over micro-batches and data-parallel ranks. `grad_norm`: before clipping. `lr`:
    of this step. `finite` is False where the loss or the norm is not finite: then nothing was changed.
    `balance`: the routers' balancing loss with a coefficient of 1, summed over layers, where there is one.
    """

    loss: float
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    finite: bool
    balance: float | None = None


SleepLevel = Literal["optimizer", "all"]
"""What sleeps: the optimizer's state and the gradients, or the parameters as well."""

PolicyLoss = Callable[[TokenOutputs, TrainBatch], LossResult]
"""Called once a micro-batch that has response tokens, where the logits are."""

ValueFunction = Callable[[Tensor, TrainBatch], LossResult]
"""From the values fp32 [n] of a micro-batch's response tokens, with gradient, to their loss."""


class Scorer(Protocol):
    """A model that gives log-probs and is not trained, such as a teacher."""

    def forward(
        self,
        batch: TrainBatch,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        top: int = 0,
        chosen: str | None = None,
    ) -> dict[str, Tensor]:
        """Columns of this rank's response tokens, on the CPU, in `batch`'s order, without gradients.

        `log_probs` fp32 [R], of the distribution divided by `temperature`; with `entropy` also `entropy`
        fp32 [R]. With `top` = K also `top_ids` int64 [R, K], the likeliest tokens in the place of each, and
        `top_log_probs` fp32 [R, K]; with `chosen` the latter of the tokens in that column of `batch`, int64
        [R, K]. `tokens_per_rank` bounds a micro-batch; a unit of `batch` stays in one. Collective; the ranks
        of one data-parallel rank pass the same batch.
        """
        ...


class Policy(Scorer, Protocol):
    """What the learner needs of the policy."""

    def train(
        self,
        batch: TrainBatch,
        loss: PolicyLoss,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
        chosen: str | None = None,
    ) -> StepResult:
        """One optimizer step on this rank's mini-batch, whose gradient is the sum of d total / dθ.

        The sum goes over micro-batches and data-parallel ranks, and is divided by nothing. A batch may be
        empty. `entropy`, `entropy_grad`: of `TokenOutputs.entropy`; `chosen`: as of `forward`. With a loss or
        a gradient norm that is not finite no weight, no moment and no position of the schedule changes.
        Collective.
        """
        ...


class ValueModel(Protocol):
    """What the learner needs of a critic: a model with one value a token in place of the logits."""

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """The value of the state before each response token, fp32 [R] on the CPU, without gradient."""
        ...

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """One optimizer step, as `Policy.train` takes it."""
        ...


class Staged(Protocol):
    """The state of a model as it was, in host memory."""

    def write(self, folder: Path) -> None:
        """Write into `folder`, which is made if needed. CheckpointError on every rank if it fails on any.

        Collective. Called in a thread beside training, whose collectives must not mix with these.
        """
        ...


class Stateful(Protocol):
    """A model that a checkpoint holds."""

    def stage(self) -> Staged:
        """A copy of all that going on takes: weights, optimizer, schedule, random states. Collective."""
        ...

    def load(self, folder: Path) -> None:
        """What `Staged.write` wrote; under the same layout what follows is the same to the last bit.

        CheckpointError where `folder` is missing, damaged or of another model. No code of a checkpoint is
        run: it may come from anywhere. Collective.
        """
        ...


class Sleeper(Protocol):
    """A model that can leave the device, for trainers whose config says that they sleep (`sleeps`)."""

    def sleep(self, what: SleepLevel) -> int:
        """Move the optimizer's state to host memory, with `all` the weights too; gradients are given up.

        May be called again for more. Until `wake`, nothing else of it is called. The bytes that the device
        has back, in all. Asks nothing of the other ranks (`rlcore.Offload` does the moving).
        """
        ...

    def wake(self) -> None:
        """Undo `sleep`: what follows is the same to the last bit as if the model had not slept."""
        ...


class TrainedPolicy(Policy, Stateful, Sleeper, Protocol):
    """The policy on one rank."""

    lr_scale: float
    """What the learning rate of the schedule is multiplied by: 1, until the worker sets another."""

    view: ModelView | None
    """What the hooks of `Roles` are shown; None without any."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every weight by its Hugging Face name, in the same order at every call.

        A tensor is whole, detached and in the parameters' dtype. It may share memory with the parameters. A
        tied output layer does not come. Collective: every rank goes to the end.
        """
        ...


class ReferencePolicy(Scorer, Stateful, Sleeper, Protocol):
    """A frozen copy of the policy's architecture on one rank."""

    def copy_weights(self, policy: Any) -> None:
        """Take over the weights of `policy`, the `TrainedPolicy` that was built beside it."""
        ...


class TrainedCritic(ValueModel, Stateful, Sleeper, Protocol):
    """The critic on one rank."""


class Teacher(Scorer, Sleeper, Protocol):
    """The teacher on one rank."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The models that one worker wants.

    `policy` None: the worker has the critic alone. `optimizer`, `critic_optimizer` come with their models.
    `is_swapped`: the reference costs no device memory but while it computes. `replay_routing`: tokens of the
    policy go to the experts in the column `ROUTED_EXPERTS` of each batch. `hooks`: called with the policy
    before its optimizer is made; a parameter without `requires_grad` stays as it is.
    """

    policy: ModelSpec | None = None
    optimizer: OptimizerSettings | None = None
    replay_routing: bool = False
    hooks: Sequence[ModelHook] = ()
    reference: ModelSpec | None = None
    is_swapped: bool = False
    teacher: ModelSpec | None = None
    critic: ModelSpec | None = None
    critic_optimizer: OptimizerSettings | None = None


@dataclass(frozen=True, kw_only=True)
class Models:
    """Those of `Roles`, on one rank; None where none was wanted."""

    policy: TrainedPolicy | None = None
    reference: ReferencePolicy | None = None
    teacher: Teacher | None = None
    critic: TrainedCritic | None = None


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one process group meet.

    `listener`: rank 0's socket at `host:port`, to be taken over; None on the others. `seed`: the run's.
    """

    rank: int
    world_size: int
    host: str
    port: int
    seed: int = 0
    listener: socket.socket | None = None


_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class DataRank:
    """Where a rank stands among those that share the data; each of them has a share of every batch.

    `group`: these ranks, by a group that takes tensors of the CPU; None where there is one. `device`: of
    tensors that all ranks reduce in torch's default group, which is that of the trainer.
    """

    number: int = 0
    group: ProcessGroup | None = None
    device: torch.device = _CPU


class TrainerRank(Protocol):
    """One rank that has joined the others."""

    @property
    def data(self) -> DataRank:
        """Its place among the data-parallel ranks."""
        ...

    def build(self, roles: Roles) -> Models:
        """The models, with the weights of their directories (or of `ModelSpec.weights`). Collective; once."""
        ...

    def stop(self) -> None:
        """Leave the process group in order. Collective."""
        ...


@dataclass(frozen=True, kw_only=True)
class SavedWeights:
    """Weights in the `folder` that `Staged.write` wrote, and the model that they are of."""

    spec: ModelSpec
    folder: Path


CHECKSUMS_FILE = "checksums.json"


@dataclass
class ConversionReport:
    """`files`: name → bytes and sha256. `tensors`: name → `rlcore.checksum`."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def add(self, other: ConversionReport) -> None:
        """Take over what another process wrote."""
        self.files |= other.files
        self.tensors |= other.tensors

    def write(self, folder: Path) -> None:
        """Write `folder/checksums.json`."""
        (folder / CHECKSUMS_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")


ProgressCallback = Callable[[int, int], None]
"""Told the bytes that were written since the last call, and how many there will be in all."""


class Trainer(Protocol):
    """Made from its config, in the driver and in each train worker; imports its library where it needs it."""

    def check_fields(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of its own table in their types; `given` as the user gave them, texts from flags.

        ConfigError, one sentence, for one that the library has not, or that would have no effect.
        """
        ...

    def fields(self, run: RunConfig, given: Mapping[str, Any], *, gpu: bool) -> Mapping[str, Any]:
        """`check_fields(given)`, with what the trainer adds for `run`: what `ModelSpec.fields` will be."""
        ...

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> TrainerRank:
        """Join the process group under the layout of `fields`, and seed the process. Collective; once."""
        ...

    def to_hf(
        self,
        source: SavedWeights,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Write the new directory `out`, as transformers and SGLang load it, in the dtype of `source.spec`.

        It appears whole or not at all, with `checksums.json`. Config, tokenizer, chat template and generation
        config come from `source.spec.path`. CheckpointError where `out` exists or does not fit on the disk,
        or `source` is damaged or of another model. `ranks`: processes that may share the work; `plugin_files`
        are loaded here, and needed there as well.
        """
        ...

    def from_hf(
        self,
        spec: ModelSpec,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Write the new directory `out`: the weights of `spec.path`, as `ModelSpec.weights` takes them.

        Every layout reads its part of them. Errors as of `to_hf`; ConfigError where the trainer has no form
        of its own.
        """
        ...

    def weights_in(self, path: Path) -> Path | None:
        """The folder of the weights in a directory that `from_hf` made; None where it is none."""
        ...
