"""A train worker that has joined the others, and the models on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from rlcore import BASE, POLICY, DataRank, ModelKind, Rendezvous, RoleSpec
from rlcore_fsdp.build import place
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.roles import LanguageModel, ValueModel
from rlcore_fsdp.swapped import SwappedModel, load_host_weights
from rlcore_toolkit import join_group, leave_group, set_seeds


def join(meeting: Rendezvous, config: FsdpConfig) -> FsdpRank:
    """Join the process group, and seed the process."""
    join_group(meeting.rank, meeting.world_size, meeting.host, meeting.port, listener=meeting.listener)
    set_seeds(meeting.seed)
    return FsdpRank(config)


class FsdpRank:
    """A `TrainerRank`: every rank has a share of each batch, and a part of each model."""

    def __init__(self, config: FsdpConfig) -> None:
        self._config = config
        # checkpoints are written beside the training, whose collectives must not mix with theirs
        self._writers = dist.new_group(backend="gloo")
        self.data = DataRank(number=dist.get_rank(), group=dist.new_group(backend="gloo"), device=place())

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Any]:
        """The model of each role."""
        # Weights in host memory come before the policy, so that no two models are on the device together.
        swapped = {
            name: load_host_weights(spec, self._config) for name, spec in roles.items() if spec.is_swapped
        }
        models: dict[str, Any] = {}
        for name, spec in roles.items():
            if spec.is_swapped:
                models[name] = SwappedModel(models[POLICY], swapped[name], self._writers)
                continue
            if spec.is_borrowed:
                policy: LanguageModel = models[POLICY]
                models[name] = policy.base if spec.source == BASE else policy.start
                continue
            kind = ValueModel if spec.kind is ModelKind.VALUES else LanguageModel
            models[name] = kind(spec, self._config, self._writers)
        return models

    def stop(self) -> None:
        """Leave the process group."""
        leave_group()
