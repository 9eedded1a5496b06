"""What every filter must fulfill, as a suite to subclass.

    class TestMyFilter(FilterConformance):
        part = Part(name="short", factory="acme.filters:Short", config=ShortConfig(max_tokens=20))

The groups: right and wrong answers; equal rewards; truncated and empty responses; tokens of a tool; rewards
per token; a trajectory in two samples; weights that changed on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from rlcore.api.records import NAME
from rlcore.api.reward import Filter, Verdict
from rlcore.api.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Score, Span
from rlcore_testing.conformance import Conformance
from rlcore_testing.samples import sample_of

PROMPT = Prompt(prompt_id="p", text="question", label="4", metadata={"level": 1})
CHANGED = ("loss_mask", "log_probs", "score", "extras", "metadata", "metrics")
"""The fields of a sample that a filter may give anew."""


def scored(index: int, value: float, tokens: int = 3, **more: Any) -> Sample:
    """A sample of `tokens` live tokens whose reward is `value`."""
    made = sample_of(
        tuple(range(2 + index, 2 + index + tokens)),
        prompt=PROMPT,
        group_id=7,
        index=index,
        log_probs=(-0.5,) * tokens,
        text="a" * tokens,
        spans=(Span(start=0, version=index),),
        status=GenerationStatus.COMPLETED,
        reward_status=RewardStatus.SCORED,
        score=Score(value=value, parts={"hits": value}),
    )
    return replace(made, **more)


class FilterConformance(Conformance):
    """Subclass it as `Test…` and give `filter` or `part`."""

    def filter(self) -> Filter:
        """A new instance."""
        made: Filter = self.part.build()
        return made

    def groups(self) -> Sequence[Group]:
        """What it judges."""
        mixed = [scored(index, float(index % 2), tokens=index + 1) for index in range(4)]
        masked = replace(mixed[3], loss_mask=(1, 0, 0, 1), log_probs=(-0.5, 0.0, 0.0, -0.5))
        truncated = replace(mixed[2], status=GenerationStatus.TRUNCATED)
        nothing = scored(1, 0.0, tokens=0)
        credit = [
            replace(sample, score=Score(value=1.0, per_token=(0.25,) * len(sample.response_ids)))
            for sample in mixed
        ]
        split = replace(mixed[1], index=0, rollout_id=mixed[0].rollout_id)
        samples = (
            mixed,
            [scored(index, 1.0) for index in range(4)],
            [*mixed[:2], truncated, masked],
            [replace(sample, status=GenerationStatus.TRUNCATED) for sample in mixed],
            [mixed[0], nothing, *mixed[2:]],
            credit,
            [mixed[0], split, *mixed[2:]],
        )
        return [Group(group_id=7, prompt=PROMPT, samples=tuple(group), epoch=1) for group in samples]

    # --- the properties --------------------------------------------------------------------------------

    def test_it_keeps_a_group_or_says_why_not(self) -> None:
        """The reason becomes a metric, so it is a name."""
        for group in self._copies():
            verdict = self.filter().judge(group)
            assert isinstance(verdict, Verdict), f"it gave {verdict!r}, not a Verdict"
            if verdict.group is None:
                reason = verdict.reason
                assert NAME.fullmatch(reason or ""), f"dropped for {reason!r}; expected a name"

    def test_it_says_the_same_again(self) -> None:
        """And another instance says so too: a resumed run drops the same groups."""
        for group in self._copies():
            instance = self.filter()
            first = instance.judge(group)
            assert instance.judge(group) == first, "asked again, it judges otherwise"
            assert self.filter().judge(group) == first, "another instance judges otherwise"

    def test_it_leaves_the_group_that_it_got_as_it_is(self) -> None:
        for group in self._copies():
            untouched = deepcopy(group)
            self.filter().judge(group)
            assert group == untouched, "it changed the group that it was given"

    def test_what_it_keeps_is_of_the_group(self) -> None:
        """The same group, its samples in order, their tokens and texts as they were."""
        for group, kept in self._kept():
            for name in ("group_id", "prompt", "epoch"):
                assert getattr(kept, name) == getattr(group, name), f"it changed {name}"
            assert kept.samples, "it keeps a group without samples; drop it with a reason"
            known = [self._fixed(sample) for sample in group.samples]
            places = [
                known.index(self._fixed(sample)) if self._fixed(sample) in known else -1
                for sample in kept.samples
            ]
            assert -1 not in places, "it keeps a sample that was not in the group, or was changed"
            assert places == sorted(set(places)), "it keeps samples in another order, or twice"

    def test_it_only_takes_tokens_out_of_the_training(self) -> None:
        """A mask of as many tokens, which lets nothing in; a log-prob is 0 where the mask is."""
        for before, after in self._pairs():
            masks = list(zip(after.loss_mask, before.loss_mask, strict=False))
            assert len(masks) == len(after.log_probs) == len(before.loss_mask), (
                "mask or log-probs: other length"
            )
            assert all(new <= old for new, old in masks), "it unmasks a token"
            for live, log_prob in zip(after.loss_mask, after.log_probs, strict=True):
                assert live or log_prob == 0, "a masked token has a log-prob"

    def test_scores_stay_numbers(self) -> None:
        """One for each sample, finite, with credit for each token or for none."""
        for _, kept in self._kept():
            for sample in kept.samples:
                assert sample.score is not None, "a sample has lost its score"
                values = (sample.score.value, *(sample.score.per_token or ()))
                assert all(map(math.isfinite, values)), f"not finite: {values}"
                credit = sample.score.per_token
                assert credit is None or len(credit) == len(sample.response_ids), (
                    "credit for some tokens only"
                )

    def test_rewards_fall_only_where_the_config_says_so(self) -> None:
        """`lowers_rewards`: estimators that take no negative reward are refused beside it."""
        config: Any = self.part.config if hasattr(self, "part") else None
        if config is None or config.lowers_rewards:
            return
        for before, after in self._pairs():
            old, new = before.score, after.score
            assert old is not None
            assert new is not None, "a sample has lost its score"
            assert new.value >= old.value, f"a reward falls from {old.value:g} to {new.value:g}"

    def _copies(self) -> list[Group]:
        """The groups, for a filter might change them."""
        return deepcopy(list(self.groups()))

    def _pairs(self) -> Iterator[tuple[Sample, Sample]]:
        """Each sample that was kept: before and after."""
        for group, kept in self._kept():
            for sample in kept.samples:
                yield next(old for old in group.samples if self._fixed(old) == self._fixed(sample)), sample

    def _kept(self) -> Iterator[tuple[Group, Group]]:
        for group in self._copies():
            kept = self.filter().judge(group).group
            if kept is not None:
                yield group, kept

    @staticmethod
    def _fixed(sample: Sample) -> dict[str, Any]:
        return {name: value for name, value in vars(sample).items() if name not in CHANGED}
