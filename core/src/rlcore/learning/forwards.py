"""The forward passes before the advantages: old policy, reference, teacher, critic, each only if something
reads it.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TEACHER_TOP_LOG_PROBS, TOP_IDS, Input
from rlcore.api.trainer import Scorer, ValueModel
from rlcore.learning.minibatch import samples_of, tokens_of
from rlcore.learning.settings import LearnerSettings

_Score = Callable[[TrainBatch], Mapping[str, Tensor]]
"""From samples to columns of their response tokens."""


@dataclass(eq=False)
class Forwards:
    """The columns of `rlcore.api.columns`, on one rank."""

    policy: Scorer
    settings: LearnerSettings
    _: KW_ONLY
    reference: Scorer | None
    teacher: Scorer | None
    critic: ValueModel | None

    def __post_init__(self) -> None:
        settings, top = self.settings, self.settings.top_tokens
        self._student_top = top.count if top and top.of == "student" else 0
        # With a single mini-batch, the training step's own forward gives the old log-probs.
        several = settings.run.optimizer.minibatches > 1 and settings.sampled and not settings.rollout_as_old
        of_policy = {Input.OLD_LOG_PROBS, Input.OLD_ENTROPY} & settings.needs
        self._old = self.policy if several or of_policy or self._student_top > 0 else None

    def columns(
        self, local: TrainBatch, times: dict[str, float], only: Collection[Input] | None = None
    ) -> TrainBatch:
        """`local`, which has the column `minibatch`, with the inputs.

        The seconds of each forward go into `times`. `only`: the inputs that are read in a warm-up of the
        critic, which leaves the policy as it is; None: all.
        """

        def is_read(name: Input) -> bool:
            return only is None or name in only

        # The old policy comes first: the teacher is asked for the tokens that it finds likeliest.
        if self._old is not None and (is_read(Input.OLD_LOG_PROBS) or is_read(Input.OLD_ENTROPY)):
            names = {
                "log_probs": Input.OLD_LOG_PROBS.value,
                "entropy": Input.OLD_ENTROPY.value,
                "top_ids": TOP_IDS,
            }
            entropy = Input.OLD_ENTROPY in self.settings.needs
            score = self._scores(self._old, names, entropy=entropy, top=self._student_top)
            local = self._with(local, score, times, "time/old_log_probs_s")
        if self.reference is not None and is_read(Input.REFERENCE_LOG_PROBS):
            score = self._scores(self.reference, {"log_probs": Input.REFERENCE_LOG_PROBS.value})
            local = self._with(local, score, times, "time/reference_log_probs_s")
        if self.teacher is not None and is_read(Input.TEACHER_LOG_PROBS):
            local = self._with(local, self._teacher_scores(self.teacher), times, "time/teacher_log_probs_s")
        if self.critic is not None:
            local = self._with(local, self._values(self.critic), times, "time/values_s")
        return local

    def _values(self, critic: ValueModel) -> _Score:
        budget = self.settings.run.optimizer.tokens_per_rank
        return lambda part: {Input.VALUES.value: critic.values(part, tokens_per_rank=budget)}

    def _teacher_scores(self, teacher: Scorer) -> _Score:
        names = {
            "log_probs": Input.TEACHER_LOG_PROBS.value,
            "top_ids": TOP_IDS,
            "top_log_probs": TEACHER_TOP_LOG_PROBS,
        }
        top = self.settings.top_tokens
        if top is not None and top.of == "student":
            return self._scores(teacher, names, chosen=TOP_IDS)
        return self._scores(teacher, names, top=top.count if top else 0)

    def _scores(
        self,
        model: Scorer,
        names: Mapping[str, str],
        *,
        entropy: bool = False,
        top: int = 0,
        chosen: str | None = None,
    ) -> _Score:
        """A function that asks `model.forward` and renames its columns; those that are not in `names` are
        dropped.
        """
        settings = self.settings

        def score(part: TrainBatch) -> dict[str, Tensor]:
            outputs = model.forward(
                part,
                temperature=settings.run.sampling.temperature,
                tokens_per_rank=settings.run.optimizer.tokens_per_rank,
                entropy=entropy,
                top=top,
                chosen=chosen,
            )
            return {names[name]: column for name, column in outputs.items() if name in names}

        return score

    def _with(self, local: TrainBatch, score: _Score, times: dict[str, float], clocked: str) -> TrainBatch:
        """`local` with columns computed mini-batch by mini-batch; their seconds as `times[clocked]`.

        The micro-batches are then the same as in training, and so is the rounding: without an update, old and
        new log-probs are equal to the last bit.
        """
        columns: dict[str, Tensor] = {}
        with clock(times, clocked):
            for number in range(self.settings.run.optimizer.minibatches):
                place_R = tokens_of(local, number)
                for name, part in score(local.select(samples_of(local, number))).items():
                    whole = columns.setdefault(name, part.new_zeros(len(place_R), *part.shape[1:]))
                    whole[place_R] = part
        return local.with_columns(per_token=columns)


@contextmanager
def clock(times: dict[str, float], name: str) -> Iterator[None]:
    """The seconds of the block, as `times[name]`."""
    begin = time.perf_counter()
    yield
    times[name] = time.perf_counter() - begin
