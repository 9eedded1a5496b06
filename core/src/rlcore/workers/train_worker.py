"""`TrainWorker`: the actor that is one rank of the trainer."""

import os
import socket
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from rlcore.api.errors import WorkerError, faults_of
from rlcore.api.model_hook import ModelHook
from rlcore.api.overlay import policy_tensor
from rlcore.api.part import Part, built
from rlcore.api.plugin_file import PluginFile, install_plugin_files
from rlcore.api.roles import POLICY, RoleSpec, policy_role
from rlcore.api.run_config import RunConfig
from rlcore.api.trainer import AdaptedPolicy, Scorer, SleepLevel, Staged, TrainedPolicy, TrainerRank
from rlcore.engines.publish import Publisher
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import Piece
from rlcore.learning.settings import LearnerSettings, Scales
from rlcore.workers.actors import BEAT_SECONDS
from rlcore.workers.remote_role import Peers, RemoteRole
from rlcore_machine import compute_threads, defer_collection, keep_memory, settle_heap, used_host_memory
from rlcore_machine.network import listen
from rlcore_machine.profiler import StepProfiler

TRAINING = "Train worker"
"""What errors call the policy's workers."""


def worker_kind(role: str) -> str:
    """What errors call the workers of `role`."""
    return TRAINING if role == POLICY else f"{role.capitalize()} worker"


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """Everything a rank needs, by value: it reads no file of the driver and builds no plugin manager.

    `world_size`: of the policy, or of a role with workers of its own, which `rank` is then one of.
    `roles`: every model of the run. `advantage`: None where the responses were given. `value_loss`: of the
    model that gives values, if there is one. `hooks`: of the policy alone.
    `sends`: engines take the weights from this rank; `tells`: the driver hears their checksums from it.
    """

    rank: int
    world_size: int
    threads: int
    learner: LearnerSettings
    trainer: Part
    roles: Mapping[str, RoleSpec]
    loss: Part
    advantage: Part | None
    corrections: tuple[Part, ...]
    hooks: tuple[Part, ...]
    value_loss: Part | None
    publisher: Publisher
    sends: bool
    tells: bool
    profiler: StepProfiler | None = None

    @property
    def run(self) -> RunConfig:
        """The settings of the run."""
        return self.learner.run


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """`metrics`: of the training step; `location`: where the new weights lie (rank 0 only), if anywhere.

    `columns`: by policy, of the response tokens of its samples (rank 0 only), where they were asked for
    (`Learner.take_columns`).
    """

    metrics: Mapping[str, float]
    location: WeightsLocation | None
    write_seconds: float
    columns: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


class RankWorker:
    """One rank of some roles. Its methods run one after another; `watch` and `write` have own threads."""

    def __init__(self, rank: int, plugin_files: Sequence[PluginFile], env: Mapping[str, str]) -> None:
        """`env`: for the libraries that are imported here, torch's OpenMP among them."""
        # Here and not by the cluster, which may have processes ready that it would throw away for new ones.
        os.environ.update(env)
        keep_memory()
        defer_collection()  # until the models are built
        # Classes of file plugins must be importable before anything that holds them is unpickled.
        install_plugin_files(plugin_files)
        self._rank = rank
        self._listener: socket.socket | None = None
        self._trainer: TrainerRank | None = None
        self._models: Mapping[str, Any] = {}
        self._staged: dict[str, Staged] = {}

    def listen(self, host: str) -> int:
        """Called on rank 0: the port at `host` where the process group meets."""
        self._listener = listen(host)
        return cast(int, self._listener.getsockname()[1])

    def stage(self, roles: Sequence[str]) -> None:
        """Copy weights, optimizer, schedule and RNGs of `roles` to host memory."""
        self._staged = {role: self._models[role].stage() for role in roles}

    def write(self, folder: str) -> None:
        """Write what was staged, each role into a folder of its name; runs beside the other methods."""
        # Each is given up once it is written: a copy is as large as the model and its optimizer.
        for role in list(self._staged):
            self._staged.pop(role).write(Path(folder) / role)

    def load(self, role: str, folder: str) -> None:
        """The state that `write` wrote."""
        self._models[role].load(Path(folder))

    def watch(self) -> None:
        """Give a sign of life, from a thread of its own, so that a long step is no silence (`watched`)."""
        time.sleep(BEAT_SECONDS)

    def device(self) -> str:
        """The name of its GPU; empty: it has none."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else ""

    def stop(self) -> None:
        """Leave the process group in order."""
        if self._trainer is not None:
            self._trainer.stop()

    def _join(self, setup: WorkerSetup, role: str, host: str, port: int) -> TrainerRank:
        """Join the process group under the layout of `role`."""
        from rlcore.api.trainer import Rendezvous

        if not Path(setup.learner.folder).is_dir():
            raise WorkerError(
                f"{worker_kind(role)} {self._rank} on {socket.gethostname()} does not see the run's folder "
                f"{setup.learner.folder}, where checkpoints are: --run-dir must be on a file system that all "
                "hosts share."
            )
        compute_threads(setup.threads)
        meeting = Rendezvous(
            rank=setup.rank,
            world_size=setup.world_size,
            host=host,
            port=port,
            seed=setup.run.seed,
            listener=self._listener,
        )
        joined: TrainerRank = setup.trainer.build().join(meeting, setup.roles[role].model.fields)
        self._trainer = joined
        return joined


class TrainWorker(RankWorker):
    """One rank of the policy, and of the roles beside it."""

    def start(self, role: str, setup: WorkerSetup, host: str, port: int) -> int:
        """Join the process group, build the models; returns the data-parallel rank.

        `connect` will name the workers of roles that have some of their own.
        """
        trainer = self._join(setup, role, host, port)
        from rlcore.learning.learner import Learner
        from rlcore.learning.policies import PolicyLearners

        self._hooks: dict[str, ModelHook] = {part.name: built(part, "model hook") for part in setup.hooks}
        limit_s = setup.run.limits.step_timeout
        here = {name: spec for name, spec in setup.roles.items() if not (spec.ranks or spec.is_borrowed)}
        here[POLICY] = replace(here[POLICY], hooks=[*self._hooks.values()])
        self._models = trainer.build(here)
        self._remote = {
            role: RemoteRole(trainer.data.number, trainer.data.group, limit_s)
            for role, spec in setup.roles.items()
            if spec.ranks
        }
        self._policy: TrainedPolicy = self._models[POLICY]
        names = ("", *setup.run.policies)
        self._policies: dict[str, TrainedPolicy] = {name: self._models[policy_role(name)] for name in names}
        self._asleep: SleepLevel | None = None
        is_policy = {policy_role(name) for name in names}
        beside = {role: model for role, model in self._models.items() if role not in is_policy}
        # `base` or `start` of an `AdaptedPolicy`
        borrowed = {role: spec.source for role, spec in setup.roles.items() if spec.is_borrowed}
        learners = {
            name: Learner(
                policy,
                loss=built(setup.loss, "loss"),
                estimator=built(setup.advantage, "advantage") if setup.advantage else None,
                settings=replace(setup.learner, policy=name),
                corrections=[built(part, "correction") for part in setup.corrections],
                value_loss=built(setup.value_loss, "value loss") if setup.value_loss else None,
                rank=trainer.data,
                **beside,
                **{role: getattr(policy, source) for role, source in borrowed.items()},
                **self._remote,
            )
            for name, policy in self._policies.items()
        }
        self._learner = PolicyLearners(learners)
        self._publisher = setup.publisher
        self._profiler = setup.profiler
        self._sends, self._tells, self._is_sending = setup.sends, setup.tells, False
        self._pieces: Generator[Piece, None, None] | None = None
        settle_heap()
        return trainer.data.number

    def connect(self, role: str, peers: Peers) -> None:
        """Say which workers of `role`, which has some of its own, this one asks."""
        self._remote[role].connect(peers)

    def update(
        self,
        share: Mapping[str, Any],
        step: int,
        first: bool,
        version: int | None,
        scales: Scales,
        keep: bool,
    ) -> UpdateResult:
        """Train on this rank's share of a rollout batch; write the new weights, unless `version` is None.

        `share`: as `to_arrays` makes it. `scales`: what settings are multiplied by in this step. `keep`: the
        result has `columns`.
        """
        from rlcore.workers.sent_batch import from_arrays

        batch = from_arrays(share)
        for policy in self._policies.values():
            policy.lr_scale = scales.lr
        with self._profiler.around(step) if self._profiler else nullcontext():
            for name, hook in self._hooks.items():
                assert self._policy.view is not None, "made for the hooks"
                with faults_of(f"The model hook {name!r}"):
                    hook.before_step(step, self._policy.view)
            metrics = self._learner.update(batch, step=step, first=first, kl_scale=scales.kl, keep=keep)
        columns = self._learner.take_columns()
        trained = time.perf_counter()
        location = None if version is None else self.write_weights(version)
        return UpdateResult(
            metrics={**metrics, **_memory()},
            location=location,
            write_seconds=time.perf_counter() - trained,
            # They are the same on every rank, so one copy travels.
            columns=columns if self._rank == 0 else {},
        )

    def stop(self) -> None:
        """Leave the process group in order, and write a profile that the end of the run cut short."""
        if self._profiler is not None:
            self._profiler.end()
        super().stop()
        if self._sends:
            self._publisher.clean()

    def write_weights(self, version: int, whole: bool = False) -> WeightsLocation | None:
        """Lay the weights down for the engines (see `Publisher.write`); the location on rank 0."""
        # Streamed weights are made later, piece by piece (`open_weights`). Here they only get their version.
        is_streamed = self._publisher.is_streamed and not whole
        tensors = iter(()) if is_streamed else self._tensors()
        if self._rank == 0:
            return self._publisher.write(tensors, version, whole=whole)
        for _ in tensors:  # every rank takes part in gathering
            pass
        return None

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is published of every policy. Collective."""
        for policy, model in self._policies.items():
            for name, tensor in model.hf_tensors():
                yield policy_tensor(policy, name), tensor

    def open_weights(self, ranks: Sequence[int] = ()) -> Piece | None:
        """Begin to make pieces of the weights, which all ranks gather together; the first (see `next_piece`).

        `ranks`: those that send, of all that may; none: all of these.
        """
        if self._asleep == "all":  # the weights come back, the optimizer need not
            for policy in self._policies.values():
                policy.sleep("publish")
        self._is_sending = self._rank in ranks if ranks else self._sends
        tells = self._rank == min(ranks) if ranks else self._tells
        self._pieces = self._publisher.pieces(self._tensors(), sends=self._is_sending, tells=tells)
        return self.next_piece()

    def next_piece(self) -> Piece | None:
        """The next piece, on a rank that sends; None: there is none, or this is another rank."""
        assert self._pieces is not None, "opened before"
        piece = next(self._pieces, None)
        return piece if self._is_sending else None

    def close_weights(self) -> None:
        """Make no more pieces. A policy that was asleep goes back to sleep."""
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None
        if self._asleep == "all":
            for policy in self._policies.values():
                policy.sleep("all")

    def broadcast(self, call: str, *arguments: Any) -> Any:
        """On rank 0, beside training: have its publisher answer a call of the driver's."""
        return self._publisher.answer(call, *arguments)

    def sleep(self, what: SleepLevel) -> int:
        """All models leave the device (`rlcore.Sleeper`). Returns the bytes freed."""
        self._asleep = what
        return sum(model.sleep(what) for model in self._models.values())

    def wake(self) -> None:
        """They come back."""
        self._asleep = None
        for model in self._models.values():
            model.wake()

    def probe(self, token_ids: Sequence[int]) -> tuple[list[float], dict[str, list[float]]]:
        """log p(token | tokens before it) of all but the first: of the base, and by policy."""
        from rlcore.api.batch import TrainBatch

        count = len(token_ids)
        batch = TrainBatch(
            tokens=torch.tensor(token_ids),
            prompt_lengths=torch.tensor([1]),
            response_lengths=torch.tensor([count - 1]),
        )

        def log_probs(model: Scorer) -> list[float]:
            columns = model.forward(batch, temperature=1.0, tokens_per_rank=count)
            scored: list[float] = columns["log_probs"].tolist()
            return scored

        by_policy = {name: log_probs(policy) for name, policy in self._policies.items()}
        return log_probs(cast(AdaptedPolicy, self._policy).base), by_policy

    def refresh(self, role: str) -> None:
        """From now on the model of `role` is the policy as it is."""
        self._models[role].copy_weights(self._policy)


def _memory() -> dict[str, float]:
    """Gigabytes in use: of this host, of this device by all processes, and at most by this one since the last
    call.
    """
    used = {"perf/host_memory_gb": used_host_memory() / 1e9}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        used["perf/gpu_memory_gb"] = (total - free) / 1e9
        used["perf/gpu_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
    return used
