"""`PolicyLearners`: each policy of a run learns from its own samples."""

from collections.abc import Mapping

from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.learning.learner import Learner


class PolicyLearners:
    """The learners of the run's own policy, whose name is empty, and of those beside it.

    Each sees the samples of its policy alone: baselines compare them, denominators count them, and each
    mini-batch of them is an optimizer step. A policy without samples makes none (`updates` is 0).
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        """`learners`: by policy, in the order of the numbers in the column `policy`."""
        self._learners = learners

    def update(
        self, local: TrainBatch, *, step: int, first: bool, kl_scale: float = 1.0, keep: bool = False
    ) -> dict[str, float]:
        """As `Learner.update`, of each policy in turn; their seconds are added up.

        The metrics of another policy than the run's own are `policy.NAME/…` in place of `train/…`.
        """
        metrics: dict[str, float] = {}
        for number, (name, learner) in enumerate(self._learners.items()):
            own = local
            if len(self._learners) > 1:
                own = local.select((local.per_sample["policy"] == number).nonzero().flatten().tolist())
            found = learner.update(own, step=step, first=first, kl_scale=kl_scale, keep=keep)
            for key, value in found.items():
                if key.startswith("time/"):
                    metrics[key] = metrics.get(key, 0.0) + value
                else:
                    metrics[key.replace("train/", f"policy.{name}/", 1) if name else key] = value
        return metrics

    def take_columns(self) -> dict[str, Mapping[str, Tensor]]:
        """`Learner.take_columns` of each policy, in the order of its samples."""
        columns = {name: learner.take_columns() for name, learner in self._learners.items()}
        return {name: own for name, own in columns.items() if own}
