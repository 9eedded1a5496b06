"""`MegatronRank`: a train worker that has joined the others, and the models on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rlcore import DataRank, Models, ModelSpec, ReferencePolicy, Rendezvous, Roles
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.critic import Critic
from rlcore_megatron.mcore.imports import device
from rlcore_megatron.mcore.role import Role
from rlcore_megatron.mcore.swapped import SwappedRole, load_host_weights


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
    """Of this process, which has joined."""
    # a group that takes tensors of the CPU: on GPUs megatron makes a second one, with gloo
    group = (
        parallel_state.get_data_parallel_group_gloo() if torch.cuda.is_available() else parallel.data_group()
    )
    return DataRank(number=parallel.data_rank(), group=group, device=device())


class MegatronRank:
    """A `TrainerRank`."""

    def __init__(self) -> None:
        self.data = data_rank()
        # checkpoints are written beside the training, whose collectives must not mix with theirs
        self._writers = dist.new_group(backend="gloo")

    def build(self, roles: Roles) -> Models:
        # before the policy, so that the two models are not on the device at the same time
        swapped = load_host_weights(roles.reference) if roles.reference and roles.is_swapped else None
        policy = self._policy(roles, roles.policy) if roles.policy else None
        reference: ReferencePolicy | None = None
        if swapped is not None:
            assert policy is not None, "it lends its model"
            reference = SwappedRole(policy, swapped)
        elif roles.reference:
            reference = Role(roles.reference, None, writers=self._writers)
        critic = self._critic(roles)
        teacher = Role(roles.teacher, None) if roles.teacher else None
        return Models(policy=policy, reference=reference, critic=critic, teacher=teacher)

    def stop(self) -> None:
        parallel.stop()

    def _policy(self, roles: Roles, spec: ModelSpec) -> Role:
        return Role(
            spec,
            roles.optimizer,
            replay_routing=roles.replay_routing,
            writers=self._writers,
            hooks=roles.hooks,
        )

    def _critic(self, roles: Roles) -> Critic | None:
        return Critic(roles.critic, roles.critic_optimizer, writers=self._writers) if roles.critic else None
