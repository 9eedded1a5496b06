"""What every reward must fulfill, as a suite to subclass.

    class TestMyReward(RewardConformance):
        part = RewardPart(name="mine", factory="my_package.reward:Mine", config=MyConfig())
        parts = frozenset({"hits"})
        cases = (Case(sample("4", label="4"), 1.0), Case(sample("5", label="4"), 0.0))

The reward is built as a worker builds it, and what it says is checked as a worker checks it.
"""

import pickle
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from rlcore.api.config import NAME
from rlcore.api.part import RewardPart
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import GenerationStatus, Json, Messages, Prompt, RewardStatus, Sample, Score
from rlcore.plugins.function_reward import build_reward
from rlcore.rollout.score_check import Failure, ScoreOrFailure, checked_scores


def sample(
    text: str,
    label: Json = None,
    *,
    prompt: str | Messages = "question",
    metadata: Mapping[str, Json] | None = None,
    status: GenerationStatus = GenerationStatus.COMPLETED,
    index: int = 0,
    tokens: int = 1,
) -> Sample:
    """An answer of `tokens` tokens to a prompt."""
    return Sample(
        prompt=Prompt(prompt_id="p", text=prompt, label=label, metadata=metadata or {}),
        prompt_ids=(1,),
        group_id=0,
        index=index,
        rollout_id=f"0.{index}",
        response_ids=(2,) * tokens,
        loss_mask=(1,) * tokens,
        text=text,
        status=status,
        reward_status=RewardStatus.PENDING,
    )


@dataclass(frozen=True)
class Case:
    """A sample and the value of its score, worked out by hand; None: there is no score."""

    sample: Sample
    value: float | None


class RewardConformance(ABC):
    """Subclass it as `Test…` and give `part` and `cases`."""

    part: ClassVar[RewardPart]
    cases: ClassVar[Sequence[Case]]

    parts: ClassVar[frozenset[str]] = frozenset()
    """The named parts that the scores have; each becomes a metric."""

    tokenizer: ClassVar[Tokenizer | None] = None
    """Of a reward that asks for one."""

    @cached_property
    def reward(self) -> Any:
        """Built from what travels to a worker."""
        return build_reward(pickle.loads(pickle.dumps(self.part)), self.tokenizer)

    def test_each_case_has_its_score(self) -> None:
        """Each alone, as in an evaluation."""
        for case in self.cases:
            [outcome] = self._judge([case.sample])
            where = f"{case.sample.text!r}: {outcome}"
            if case.value is None:
                assert isinstance(outcome, Failure), where
            else:
                assert isinstance(outcome, Score), where
                assert abs(outcome.value - case.value) < 1e-6, where

    def test_parts_are_those_that_it_tells(self) -> None:
        parts = {name for score in self._scores() for name in score.parts}
        assert parts == self.parts
        assert all(NAME.fullmatch(name) for name in parts)

    def test_it_says_the_same_again(self) -> None:
        assert self._scores() == self._scores()

    def test_the_scores_keep_the_order_of_the_samples(self) -> None:
        first = next(case.sample for case in self.cases if case.value is not None)
        texts = [case.sample.text for case in self.cases if case.sample.prompt == first.prompt]
        group = [replace(first, text=text, index=index) for index, text in enumerate(texts)]
        forth, back = self._judge(group), self._judge(group[::-1])
        assert len(forth) == len(group)
        assert forth == back[::-1]

    def test_an_empty_response_has_a_score(self) -> None:
        """It is the policy's, and so no failure of the reward."""
        first = next(case.sample for case in self.cases if case.value is not None)
        [outcome] = self._judge([replace(first, text="", response_ids=(), loss_mask=())])
        assert isinstance(outcome, Score), outcome

    def _judge(self, samples: Sequence[Sample]) -> list[ScoreOrFailure]:
        return checked_scores(self.reward, samples, self.part.config.value_range)

    def _scores(self) -> list[Score]:
        outcomes = [self._judge([case.sample])[0] for case in self.cases]
        return [outcome for outcome in outcomes if isinstance(outcome, Score)]
