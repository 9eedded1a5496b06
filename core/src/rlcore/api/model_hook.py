"""What a plugin of the kind `model_hook` implements: it reaches the policy in each train worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """The policy on one rank.

    `modules`: this rank's part of it. `parameters`: this rank's, by their names in the whole model, which are
    the trainer's; layers are numbered through all pipeline stages. `names`: those of all ranks.
    """

    modules: Sequence[nn.Module]
    parameters: Mapping[str, nn.Parameter]
    names: frozenset[str]


class ModelHook:
    """Kind `model_hook`. A base, whose methods do nothing. Each train worker builds its own.

    All ranks call its methods in the same order, so they may communicate. What it raises ends the run; a
    `UserError` is for what the user can mend.
    """

    def built(self, model: ModelView) -> None:
        """The weights are those of the directory, and there is no optimizer yet.

        A parameter whose `requires_grad` it takes away is never changed. Also called in a resumed run, whose
        weights come afterwards.
        """

    def before_step(self, step: int, model: ModelView) -> None:
        """Before the optimizer steps on the rollout batch of `step`, from 1."""
