"""The base of every config table: frozen, bounded, explained, unknown keys refused."""

import os
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from rlcore.inputs import Input, TopTokens
from rlcore.trains_on import TrainsOn


class Config(BaseModel):
    """One table of settings.

    Each field has a default (unless the user must choose), bounds, and one line of help as its
    `description`. Instances are frozen; a changed copy is made by `model_copy(update=…)` through validation.
    """

    min_group_size: ClassVar[int] = 1
    """The smallest group that the component works with; 2 for estimators that compare siblings."""

    def needed_group_size(self) -> int:
        """`min_group_size`, unless a setting changes what the component does with a group of one."""
        return self.min_group_size

    needs: ClassVar[frozenset[Input]] = frozenset()
    """The columns that the component reads and that cost a forward pass or a generation."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.ROLLOUTS})
    """Of what works on the train batch: the runs that it can be a part of."""

    compares: ClassVar[tuple[str, str] | None] = None
    """Of a correction: the two of `new`, `old` and `rollout` that it compares, whose equality idles it."""

    @property
    def weighs(self) -> bool:
        """Of a correction: whether its weights stand for the ratio that it compares; else they leave out."""
        return False

    from_zero: ClassVar[bool] = False
    """Of an estimator: a reward below 0 has no meaning to it."""

    normalizes: ClassVar[bool] = False
    """Of an estimator: it gives its advantages mean 0 and variance 1 over the batch itself."""

    @property
    def lowers_rewards(self) -> bool:
        """Of a filter: whether it takes something from a reward, which may get below 0."""
        return False

    of_asynchrony: ClassVar[bool] = False
    """Of a filter: whether all groups of a synchronous run are alike to it."""

    @property
    def top_tokens(self) -> TopTokens | None:
        """The likeliest tokens of each position, where a loss compares them with the teacher's."""
        return None

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def absolute(path: str | None) -> str | None:
    """For a field's validator: a path that a resumed run finds again, wherever it is resumed.

    Links stay: an interpreter in a virtual environment is one.
    """
    return None if path is None else os.path.abspath(path)
