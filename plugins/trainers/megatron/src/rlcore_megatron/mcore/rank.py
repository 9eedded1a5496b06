"""`MegatronRank`: a train worker that has joined the others, and the models on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rlcore import POLICY, AdapterSpec, DataRank, ModelKind, Rendezvous, RoleSpec
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.critic import Critic
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.swapped import SwappedRole, load_host_weights
from rlcore_toolkit import current_device


def join(meeting: Rendezvous, fields: Mapping[str, Any]) -> MegatronRank:
    """Join the process group under the layout of `fields`."""
    parallel.start(
        meeting.rank,
        meeting.world_size,
        meeting.host,
        meeting.port,
        listener=meeting.listener,
        seed=meeting.seed,
        **split(fields).layout,
    )
    return MegatronRank()


def data_rank() -> DataRank:
    """The data-parallel rank of this process, which has joined."""
    # a group that takes tensors of the CPU: on GPUs megatron makes a second one, with gloo
    group = (
        parallel_state.get_data_parallel_group_gloo() if torch.cuda.is_available() else parallel.data_group()
    )
    return DataRank(number=parallel.data_rank(), group=group, device=current_device())


class MegatronRank:
    """A `TrainerRank`."""

    def __init__(self) -> None:
        self.data = data_rank()
        # checkpoints are written beside the training, whose collectives must not mix with theirs
        self._writers = dist.new_group(backend="gloo")

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Any]:
        # Weights in host memory come before the policy, so that no two models are on the device together.
        swapped = {name: load_host_weights(spec.model) for name, spec in roles.items() if spec.is_swapped}
        models: dict[str, Any] = {}
        for name, spec in roles.items():
            if spec.is_swapped:
                models[name] = SwappedRole(models[POLICY], swapped[name])
                continue
            if spec.kind is ModelKind.POLICY and name != POLICY:
                models[name] = models[POLICY].further(spec)
                continue
            assert spec.overlay is None or isinstance(spec.overlay, AdapterSpec), "of `overlay`"
            kind = Critic if spec.kind is ModelKind.VALUES else Role
            models[name] = kind(
                spec.model,
                spec.optimizer,
                replayed=spec.replayed,
                writers=self._writers,
                hooks=spec.hooks,
                adapter=spec.overlay,
            )
        return models

    def stop(self) -> None:
        parallel.stop()
