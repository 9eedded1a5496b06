"""Kind `trainer`: builds the models of a run, trains them, saves them and gives out their weights.

The driver makes a `Trainer` from its config, to check fields and to convert weights. Each train worker makes
one too: it calls `join` once, then `TrainerRank.build` once, then the methods of the models, and
`TrainerRank.stop` at the end. *Collective* means: every rank of the process group makes this call, in the
same order.

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
    """What the model says of the n response tokens of a micro-batch, in their order.

    `log_probs` fp32 [n], with gradient: logits are divided by the sampling temperature. `entropy` fp32 [n],
    if asked for; with gradient only if that is asked for too. `chosen` fp32 [n, K], with gradient: log-probs
    of K given tokens at each position, if asked for.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    chosen: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """`total`: scalar Σ weight · loss. The weights contain the denominators, so nobody divides it again.

    `metrics`: scalar sums, which are added over micro-batches and data-parallel ranks.
    """

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step, the same on every rank.

    `loss`, `metrics`: sums over micro-batches and data-parallel ranks. `grad_norm`: before clipping. `lr`: of
    this step. `finite`: False if the loss or the norm is not finite; then the step has changed nothing.
    `balance`: the balancing loss of a mixture's routers with a coefficient of 1, summed over layers; None:
    there is none. `extras`: what else the trainer measured, shown as `<role>/<name>`.
    """

    loss: float
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    finite: bool
    balance: float | None = None
    extras: Mapping[str, float] = field(default_factory=dict)


SleepLevel = Literal["optimizer", "all"]
"""What leaves the device: the optimizer's state and the gradients, or the parameters too."""

PolicyLoss = Callable[[TokenOutputs, TrainBatch], LossResult]
"""Called for each micro-batch with response tokens, on the ranks that have the logits."""

ValueFunction = Callable[[Tensor, TrainBatch], LossResult]
"""From the values fp32 [n] of a micro-batch's response tokens, which carry the gradient, to their loss."""


class Scorer(Protocol):
    """A model that gives log-probs and is not trained: a teacher or a reference."""

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
        """Columns of this rank's response tokens, on the CPU, in the order of `batch`, without gradients.

        Always `log_probs` fp32 [R], with logits divided by `temperature`. With `entropy`: `entropy` fp32 [R].
        With `top` = K: `top_ids` int64 [R, K], the likeliest tokens at each position, and `top_log_probs`
        fp32 [R, K]. With `chosen`: `top_log_probs` of the tokens in that column of `batch`, int64 [R, K].

        A micro-batch has at most `tokens_per_rank` tokens, and a unit of `batch` stays in one. Collective;
        all ranks of a model replica pass the same batch.
        """


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
        """One optimizer step on this rank's mini-batch, which may be empty.

        The gradient is the sum of d total / dθ over micro-batches and data-parallel ranks, divided by
        nothing. `entropy`, `entropy_grad`: for `TokenOutputs.entropy`. `chosen`: as in `forward`. If the loss
        or the gradient norm is not finite, weights, moments and the learning-rate schedule stay as they are.
        Collective.
        """


class ValueModel(Protocol):
    """What the learner needs of a critic: a model that gives one value for each token instead of logits."""

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """The value of the state before each response token, fp32 [R] on the CPU, without gradient."""

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """One optimizer step, under the rules of `Policy.train`."""


class Staged(Protocol):
    """A copy of a model's state in host memory."""

    def write(self, folder: Path) -> None:
        """Write into `folder`, which is made if needed. If it fails on one rank, all raise CheckpointError.

        Collective. Called in a thread beside training, so its collectives need a process group of their own.
        """


class Stateful(Protocol):
    """A model that a checkpoint holds."""

    def stage(self) -> Staged:
        """A copy of all that a resume needs: weights, optimizer, schedule, random states. Collective."""

    def load(self, folder: Path) -> None:
        """Load what `Staged.write` wrote. Under the same layout, training then goes on bit for bit.

        CheckpointError if `folder` is missing, damaged or of another model. A checkpoint may come from
        anywhere, so loading must not run code in it. Collective.
        """


class Sleeper(Protocol):
    """A model that can leave the device, for trainers whose config says `sleeps`.

    `rlcore_toolkit.Offload` helps.
    """

    def sleep(self, what: SleepLevel) -> int:
        """Move the optimizer's state to host memory, with `all` the weights too, and drop the gradients.

        Returns the bytes freed on the device so far. May be called again with another level: from `all` to
        `optimizer` the weights come back. With `optimizer`, a policy's `hf_tensors` may be called; otherwise
        nothing is before `wake`. Not collective.
        """

    def wake(self) -> None:
        """Undo `sleep`. Training then goes on bit for bit as if the model had not slept."""


class TrainedPolicy(Policy, Stateful, Sleeper, Protocol):
    """The policy on one rank."""

    lr_scale: float
    """The factor on the scheduled learning rate: 1, until the worker sets another."""

    view: ModelView | None
    """The model as the hooks of `Roles` see it; None: there are no hooks."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight with its Hugging Face name, in the same order at every call.

        Each tensor is whole, detached and in the parameters' dtype; it may share memory with the parameters.
        A tied output layer is left out. Collective: every rank iterates to the end.
        """


class ReferencePolicy(Scorer, Stateful, Sleeper, Protocol):
    """A frozen copy of the policy's architecture on one rank.

    On workers of its own, it takes over the policy by `load` of a folder that the policy's `Staged` wrote.
    """

    def copy_weights(self, policy: Any) -> None:
        """Copy the weights of `policy`, the `TrainedPolicy` that was built beside it."""


class TrainedCritic(ValueModel, Stateful, Sleeper, Protocol):
    """The critic on one rank."""


class Teacher(Scorer, Sleeper, Protocol):
    """The teacher on one rank."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The models that one worker wants.

    `policy`: None: the worker holds only one of the others. `optimizer`, `critic_optimizer`: given with their
    models. `is_swapped`: the reference takes device memory only while it computes. `replay_routing`: the
    policy sends its tokens to the experts in the batch's column `ROUTED_EXPERTS`. `hooks`: are shown the
    policy before its optimizer exists; parameters that they freeze (`requires_grad`) never change.
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
    """The models of `Roles` on one rank. None: not wanted."""

    policy: TrainedPolicy | None = None
    reference: ReferencePolicy | None = None
    teacher: Teacher | None = None
    critic: TrainedCritic | None = None


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one process group meet.

    `listener`: on rank 0, the open socket at `host:port`, which it takes over; None on the others. `seed`:
    the run's.
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
    """The place of a rank among the data-parallel ranks, each of which gets a share of every batch.

    `number`: its share. `group`: of these ranks, for CPU tensors; None: there is only one. `device`: of
    tensors that all ranks reduce in torch's default process group, which is the trainer's.
    """

    number: int = 0
    group: ProcessGroup | None = None
    device: torch.device = _CPU


class TrainerRank(Protocol):
    """One rank that has joined the others."""

    @property
    def data(self) -> DataRank:
        """Its place among the data-parallel ranks."""

    def build(self, roles: Roles) -> Models:
        """The models with their first weights: those of `ModelSpec.weights`, or of the directory.

        Collective.
        """

    def stop(self) -> None:
        """Leave the process group. Collective."""


@dataclass(frozen=True, kw_only=True)
class SavedWeights:
    """A `folder` that `Staged.write` wrote, and the model whose weights it has."""

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
"""Called with the bytes written since the last call, and the bytes that there will be in all."""


class Trainer(Protocol):
    """Made from its config, in the driver and in each train worker; imports its library where it needs it."""

    def check_fields(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of its own table in their types. `given`: as the user gave them; flags are texts.

        ConfigError, one sentence, for a field that the library does not have, or that would have no effect.
        """

    def fields(self, run: RunConfig, given: Mapping[str, Any], *, gpu: bool) -> Mapping[str, Any]:
        """`check_fields(given)` plus what the trainer adds for `run`.

        The result becomes `ModelSpec.fields`.
        """

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> TrainerRank:
        """Join the process group under the layout of `fields`, and seed the process. Collective."""

    def to_hf(
        self,
        source: SavedWeights,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Write the new directory `out` for transformers and SGLang, in the dtype of `source.spec`.

        It appears whole or not at all, with `checksums.json`. Config, tokenizer, chat template and generation
        config come from `source.spec.path`. CheckpointError if `out` exists, the disk has no room, or
        `source` is damaged or of another model. `ranks`: processes that may share the work; they need the
        `plugin_files`.
        """

    def from_hf(
        self,
        spec: ModelSpec,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Write the new directory `out` with the weights of `spec.path` in the trainer's own form.

        `ModelSpec.weights` then names it, and every layout reads its part. Errors as in `to_hf`; ConfigError
        where the trainer has no form of its own.
        """

    def weights_in(self, path: Path) -> Path | None:
        """The folder with the weights in a directory that `from_hf` made; None: `from_hf` did not make it."""
