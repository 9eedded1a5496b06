"""What a plugin of the kind `model_hook` implements: it works on the policy's modules in each train
worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """The policy on one rank.

    `modules`: this rank's part of the model. `parameters`: this rank's parameters, by the trainer's names for
    them in the whole model: layers are numbered through all pipeline stages. `names`: the names on all ranks.
    """

    modules: Sequence[nn.Module]
    parameters: Mapping[str, nn.Parameter]
    names: frozenset[str]


class ModelHook:
    """Kind `model_hook`. Derive from it; its own methods do nothing. Each train worker builds one.

    All ranks call the methods in the same order, so these may communicate. An error ends the run; raise
    `UserError` for what the user can mend.
    """

    def built(self, model: ModelView) -> None:
        """Called when the model has its first weights and before there is an optimizer.

        Set `requires_grad = False` on a parameter to freeze it. In a resumed run this is called too, before
        the weights of the checkpoint are loaded.
        """

    def before_step(self, step: int, model: ModelView) -> None:
        """Called before the optimizer steps of each rollout batch. `step` counts from 1."""
