"""Kind `trainer`: builds the models of a run, trains them, saves them and gives out their weights.

The driver makes a `Trainer` from its config, to check fields and to convert weights. Each train worker makes
one too: it calls `join` once, then `TrainerRank.build` once, then the methods of the models, and
`TrainerRank.stop` at the end. *Collective* means: every rank of the process group makes this call, in the
same order.

Shape suffixes as in `rlcore.learning.maths`: R = sum(R_i), the response tokens of a batch.
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.api.batch import TrainBatch
from rlcore.api.model_hook import ModelView
from rlcore.api.overlay import Overlay
from rlcore.api.part import ModelSpec
from rlcore.api.plugin_file import PluginFile
from rlcore.api.roles import RoleSpec
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
    `extras`: what else the trainer measured, shown as `<role>/<name>`.
    """

    loss: float
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    finite: bool
    extras: Mapping[str, float] = field(default_factory=dict)


SleepLevel = Literal["optimizer", "publish", "all"]
"""What leaves the device: the optimizer's state and the gradients, or (`all`) the parameters too; `publish`:
those of the parameters that the trainer publishes without.
"""

PolicyLoss = Callable[[TokenOutputs, TrainBatch], LossResult]
"""Called for each micro-batch with response tokens, on the ranks that have the logits."""

ValueFunction = Callable[[Tensor, TrainBatch], LossResult]
"""From the values fp32 [n] of a micro-batch's response tokens, which carry the gradient, to their loss."""


class Scorer(Protocol):
    """A model that gives log-probs."""

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
    """What the learner needs of a model that gives one value for each token instead of logits."""

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
    """A model that can leave the device, for trainers with `Ability.SLEEP`.

    `rlcore_toolkit.ModelOffload` helps.
    """

    def sleep(self, what: SleepLevel) -> int:
        """Move the optimizer's state to host memory, with `all` the weights too, and drop the gradients.

        Returns the bytes freed on the device so far. May be called again with another level: from `all` to
        `optimizer` the weights come back. At `optimizer` and `publish` a policy's `hf_tensors` may be called;
        at `all` nothing, before `wake`. Not collective.
        """

    def wake(self) -> None:
        """Undo `sleep`. Training then goes on bit for bit as if the model had not slept."""


class TrainedPolicy(Policy, Stateful, Sleeper, Protocol):
    """The policy on one rank."""

    lr_scale: float
    """The factor on the scheduled learning rate: 1, until the worker sets another."""

    view: ModelView | None
    """The model as the hooks of its `RoleSpec` see it; None: there are no hooks."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight with its Hugging Face name, in the same order at every call.

        Each tensor is whole, detached and in the parameters' dtype; it may share memory with the parameters.
        A tied output layer is left out. Collective: every rank iterates to the end.
        """


class AdaptedPolicy(TrainedPolicy, Protocol):
    """A policy with a `RoleSpec.overlay`, for trainers that are an `AdaptingTrainer`.

    Its base never changes: optimizer, gradients and what `stage` copies are the overlay's. `hf_tensors` gives
    the base with the overlay, made anew from the base in fp32 at each call, and cast once; of an overlay that
    `travels`, the overlay alone (`rlcore_toolkit.published_adapter`). What is staged writes PEFT's files, too
    (`rlcore_toolkit.write_adapter`), by which rlcore knows that it is no whole model.
    """

    base: Scorer
    """The policy without its overlay. It has no weights of its own."""
    start: Scorer
    """The policy with the overlay that it began with. It has no other weights of its own."""


class FrozenPolicy(Scorer, Stateful, Sleeper, Protocol):
    """A language model on one rank that is never trained.

    On workers of its own, it takes over the policy by `load` of a folder that the policy's `Staged` wrote.
    """

    def copy_weights(self, policy: Any) -> None:
        """Copy the weights of `policy`, the `TrainedPolicy` that was built beside it."""


class TrainedValues(ValueModel, Stateful, Sleeper, Protocol):
    """A value model on one rank."""


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

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Any]:
        """The model of each role, with its first weights: those of `ModelSpec.weights`, or of the directory.

        Each has the protocol of its kind (`rlcore.ModelKind`). The policy comes first, then the roles beside
        it; or one of these is alone. Collective.
        """

    def stop(self) -> None:
        """Leave the process group. Collective."""


@dataclass(frozen=True, kw_only=True)
class SavedWeights:
    """A `folder` that `Staged.write` wrote, and the model whose weights it has."""

    spec: ModelSpec
    folder: Path


CHECKSUMS_FILE = "checksums.json"
"""The file beside converted weights that keeps the checksum of each tensor."""


@dataclass
class ConversionReport:
    """`files`: name → bytes and sha256. `tensors`: name → `rlcore.checksum`."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def add(self, other: "ConversionReport") -> None:
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
        """Write the new directory `out` for transformers and engines, in the dtype of `source.spec`.

        It appears whole or not at all, with `checksums.json`. Config, tokenizer, chat template and generation
        config come from `source.spec.path`. CheckpointError if `out` exists, the disk has no room, or
        `source` is damaged or of another model. `ranks`: processes that may share the work; they need the
        `plugin_files`.
        """


class AdaptingTrainer(Trainer, Protocol):
    """A trainer that can leave the model's own weights as they are (`rlcore.Ability`)."""

    def overlay(self, run: RunConfig, model: ModelSpec) -> Overlay:
        """What `run` trains over its policy's `model`. `UserError` where it does not fit the model."""


class ConvertingTrainer(Trainer, Protocol):
    """A trainer with `Ability.OWN_WEIGHTS`."""

    def from_hf(
        self,
        spec: ModelSpec,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Write the new directory `out` with the weights of `spec.path` in the trainer's own form.

        `ModelSpec.weights` then names it, and every layout reads its part. Errors as in `to_hf`.
        """

    def weights_in(self, path: Path) -> Path | None:
        """The folder with the weights in a directory that `from_hf` made; None: `from_hf` did not make it."""
