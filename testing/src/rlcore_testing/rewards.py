"""What every reward must fulfill, as a suite to subclass.

    class TestMyReward(RewardConformance):
        part = RewardPart(name="mine", factory="my_package.reward:Mine", config=MyConfig())
        parts = frozenset({"hits"})
        cases = (Case(sample("4", label="4"), 1.0), Case(sample("5", label="4"), 0.0))

The reward is built as a worker builds it, and what it says is checked as a worker checks it.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self
from unittest import SkipTest

from rlcore.api.errors import ConfigError
from rlcore.api.part import RewardPart
from rlcore.api.records import NAME
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import GenerationStatus, Json, Messages, Prompt, RewardStatus, Sample, Score
from rlcore.rollout.score_check import Failure, ScoreOrFailure, checked_scores
from rlcore_testing.conformance import Conformance, Subject, same
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import ByteTokenizer

PROMPTS = (
    Prompt(prompt_id="text", text="What is 2 + 2?", label="4"),
    Prompt(prompt_id="chat", text=({"role": "user", "content": "What is 5 * 5?"},), label="25"),
)
"""What is asked where nobody says what a reward can judge."""


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
    return sample_of(
        (2,) * tokens,
        prompt=Prompt(prompt_id="p", text=prompt, label=label, metadata=metadata or {}),
        index=index,
        text=text,
        status=status,
        reward_status=RewardStatus.PENDING,
    )


@dataclass(frozen=True)
class Case:
    """A sample and the value of its score, worked out by hand; None: there is no score."""

    sample: Sample
    value: float | None


class RewardConformance(Conformance):
    """Subclass it as `Test…` and give `part` and `cases`."""

    part: ClassVar[RewardPart]
    cases: ClassVar[Sequence[Case]] = ()

    parts: ClassVar[frozenset[str] | None] = frozenset()
    """The named parts that the scores have; each becomes a metric. None: not known."""

    tokenizer: ClassVar[Tokenizer | None] = None
    """The tokenizer for a reward that asks for one."""

    prompts: ClassVar[Sequence[Prompt]] = ()
    """Whose answers it can judge, where there are no `cases`."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """It judges made-up answers to the prompts, the label among them.

        Raises `ConfigError` if it can judge no answer to the prompts of the suite.
        """
        made = cls.with_values(
            part=RewardPart(**vars(subject.part)),
            parts=None,
            tokenizer=ByteTokenizer(),
            prompts=subject.prompts or PROMPTS,
        )
        if not subject.prompts:
            suite = made()
            outcomes = [outcome for group in suite._groups() for outcome in suite._judge(group)]
            failures = [
                outcome for outcome in outcomes if isinstance(outcome, Failure) and outcome.trace
            ]  # it raised
            if len(failures) == len(outcomes):
                said = f"reward {suite.part.name!r} can judge none of the suite's answers"
                instead = "give prompts whose answers it can judge, by --data FILE or --task NAME"
                raise ConfigError(f"{said}: {failures[0].reason}; {instead}.")
        return made

    @cached_property
    def reward(self) -> Any:
        """Built from what travels to a worker."""
        return self._built()

    # --- the properties --------------------------------------------------------------------------------

    def test_each_case_has_its_score(self) -> None:
        """Each alone, as in an evaluation."""
        if not self.cases:
            raise SkipTest("a test class gives `cases`, worked out by hand")
        for case in self.cases:
            [outcome] = self._judge([case.sample])
            where = f"{case.sample.text!r}: {outcome}"
            if case.value is None:
                assert isinstance(outcome, Failure), where
            else:
                assert isinstance(outcome, Score), where
                assert abs(outcome.value - case.value) < 1e-6, where

    def test_it_complains_of_no_prompt_that_it_judges(self) -> None:
        """Before the run: rlcore refuses prompts of which it complains."""
        prompts = [group[0].prompt for group in self._groups()]
        complain = getattr(self.part.load(), "prompt_complaints", None)
        if complain is None:
            raise SkipTest("it can judge every prompt")
        assert list(complain(self.part.config, prompts)) == [""] * len(prompts)

    def test_each_answer_has_a_score(self) -> None:
        """Right or wrong, alone or among siblings; finite, and within the range that the config says."""
        for group in self._groups():
            for answer in group:
                self._score(answer)
            self._scored(group)

    def test_parts_are_those_that_it_tells(self) -> None:
        parts = {name for group in self._groups() for answer in group for name in self._score(answer).parts}
        assert self.parts is None or parts == self.parts, f"found {sorted(parts)}"
        for name in parts:
            assert NAME.fullmatch(name), f"{name!r} is no name of a metric: lower-case letters, digits, _"

    def test_it_says_the_same_again(self) -> None:
        """A score depends on nothing but the samples, in another worker too."""
        for group in self._groups():
            first = self._scored(group)
            same(self._scored(group), first, "asked again, the scores")
            same(checked_scores(self._built(), group, self._range), first, "another worker, the scores")

    def test_the_scores_keep_the_order_of_the_samples(self) -> None:
        for group in self._groups():
            same(self._scored(group[::-1])[::-1], self._scored(group), "of the group backwards, the scores")

    def test_an_empty_response_has_a_score(self) -> None:
        """It is the policy's, and so no failure of the reward."""
        for group in self._groups():
            self._score(replace(group[0], text="", response_ids=(), loss_mask=()))

    def test_a_truncated_response_has_a_score(self) -> None:
        for group in self._groups():
            self._score(replace(group[0], status=GenerationStatus.TRUNCATED))

    def test_tokens_of_a_tool_do_not_stop_it(self) -> None:
        """Every other token is masked; credit per token has an entry for each of them."""
        for group in self._groups():
            for answer in group:
                mask = tuple(place % 2 == 0 for place in range(len(answer.response_ids)))
                self._score(replace(answer, loss_mask=tuple(map(int, mask))))

    def test_credit_is_given_to_each_token(self) -> None:
        """Where it scores tokens, it does so for each response, whatever its length."""
        scores = [self._score(answer) for group in self._groups() for answer in group]
        if all(score.per_token is None for score in scores):
            raise SkipTest("it gives no credit per token")
        for group in self._groups():
            for answer in group:
                assert self._score(answer).per_token is not None, f"{answer.text!r} has none, others have"

    def test_it_leaves_the_samples_as_they_are(self) -> None:
        """Other rewards and the filters see them too."""
        for group in self._groups():
            untouched = deepcopy(group)
            self._scored(group)
            same(group, untouched, "it changed a sample")

    # --- how they are computed -------------------------------------------------------------------------

    @property
    def _range(self) -> tuple[float, float] | None:
        return self.part.config.value_range

    def _built(self) -> Any:
        return pickle.loads(pickle.dumps(self.part)).build(tokenizer=self.tokenizer, settings={})

    def _groups(self) -> list[list[Sample]]:
        """What it can score: the cases of each prompt as siblings, else the answers to each prompt.

        Copies, for a reward might change them.
        """
        assert self.cases or self.prompts, "the test class gives no `cases` and no `prompts`"
        if not self.cases:
            return deepcopy([answers(prompt) for prompt in self.prompts])
        groups: list[list[Sample]] = []
        for case in self.cases:
            known = next((group for group in groups if group[0].prompt == case.sample.prompt), None)
            if case.value is None:
                continue
            if known is None:
                groups.append(known := [])
            known.append(replace(case.sample, index=len(known)))
        return deepcopy(groups)

    def _judge(self, samples: Sequence[Sample]) -> list[ScoreOrFailure]:
        return checked_scores(self.reward, samples, self._range)

    def _scored(self, samples: Sequence[Sample]) -> list[Score]:
        return [
            _score_of(answer, outcome) for answer, outcome in zip(samples, self._judge(samples), strict=True)
        ]

    def _score(self, sample: Sample) -> Score:
        return self._scored([sample])[0]


def answers(prompt: Prompt) -> list[Sample]:
    """Siblings that answer it: with the label, with the label among words, with something else."""
    label = prompt.label[0] if isinstance(prompt.label, list | tuple) and prompt.label else prompt.label
    said = label if isinstance(label, str) else json.dumps(label)
    tokenizer = ByteTokenizer()
    texts = (said, f"The answer is {said}.", f"\\boxed{{{said}}}", "I do not know.")
    return [
        replace(
            sample(text, prompt.label, index=index),
            prompt=prompt,
            response_ids=ids,
            loss_mask=(1,) * len(ids),
        )
        for index, text in enumerate(texts)
        for ids in [tuple(tokenizer.encode(text, add_special_tokens=False))]
    ]


def _score_of(answer: Sample, outcome: ScoreOrFailure) -> Score:
    assert isinstance(outcome, Score), f"{answer.text!r} has no score: {outcome.reason}"
    return outcome
