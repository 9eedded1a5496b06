"""A train worker that has joined the others, and the models on it."""

import copy
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rlcore import POLICY, AdapterSpec, DataRank, ModelKind, Rendezvous, RoleSpec
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.roles import LanguageModel, ValueModel
from rlcore_fsdp.shards import local
from rlcore_toolkit import HostWeights, SwappedModel, current_device, join_group, leave_group, set_seeds


class FsdpRank:
    """A `TrainerRank`: every rank has a share of each batch, and a part of each model."""

    def __init__(self, meeting: Rendezvous, config: FsdpConfig) -> None:
        """Join the process group, and seed the process."""
        join_group(meeting.rank, meeting.world_size, meeting.host, meeting.port, listener=meeting.listener)
        set_seeds(meeting.seed)
        self._config = config
        # checkpoints are written beside the training, whose collectives must not mix with theirs
        self._writers = dist.new_group(backend="gloo")
        self.data = DataRank(
            number=dist.get_rank(), group=dist.new_group(backend="gloo"), device=current_device()
        )

    def build(self, roles: Mapping[str, RoleSpec]) -> Mapping[str, Any]:
        """The model of each role."""
        # Weights in host memory come before the policy, so that no two models are on the device together.
        swapped = {
            name: HostWeights(_tensors(LanguageModel(spec, self._config, None)))
            for name, spec in roles.items()
            if spec.is_swapped
        }
        models: dict[str, Any] = {}
        further = {
            name: spec.overlay
            for name, spec in roles.items()
            if spec.kind is ModelKind.POLICY and name != POLICY and isinstance(spec.overlay, AdapterSpec)
        }
        for name, spec in roles.items():
            if spec.is_swapped:
                view = copy.copy(models[POLICY])
                view.optimizer, view.steps = None, 0
                models[name] = SwappedModel(view, swapped[name], _tensors)
            elif name in further:
                models[name] = models[POLICY].further(name, spec, self._config)
            elif spec.kind is ModelKind.VALUES:
                models[name] = ValueModel(spec, self._config, self._writers)
            else:
                beside = further if name == POLICY else {}
                models[name] = LanguageModel(spec, self._config, self._writers, beside)
        return models

    def stop(self) -> None:
        """Leave the process group."""
        leave_group()


def _tensors(model: LanguageModel) -> list[Tensor]:
    return [local(tensor) for tensor in model.state.values()]
