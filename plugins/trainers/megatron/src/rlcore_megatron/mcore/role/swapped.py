"""A frozen role without a model of its own: its weights wait in the host's memory."""

import copy

from torch import Tensor

from rlcore import ModelSpec
from rlcore_megatron.mcore.bridges.mtp import policy_tensors
from rlcore_megatron.mcore.role.role import Role
from rlcore_toolkit import HostWeights, SwappedModel


def host_weights(role: Role) -> HostWeights:
    """A copy of the parameters and buffers of `role`."""
    return HostWeights(_tensors(role))


def load_host_weights(spec: ModelSpec) -> HostWeights:
    """Those of the model that `spec` describes, which is built for it and given up again. Collective."""
    return host_weights(Role(spec, None))


class SwappedRole(SwappedModel):
    """A frozen copy of a policy's model, which borrows that model for each of its forwards."""

    def __init__(self, policy: Role, weights: HostWeights) -> None:
        """`weights`: of a model with the architecture of `policy`."""
        view = copy.copy(policy)
        view.optimizer, view.settings, view.steps = None, None, 0
        view.replayed = frozenset()  # the choice was the policy's
        super().__init__(view, weights, _tensors)


def _tensors(role: Role) -> list[Tensor]:
    return [tensor for chunk in role.built.chunks for tensor in policy_tensors(chunk)]
