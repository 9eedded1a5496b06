"""What every prompt source must fulfill, as a suite to subclass.

class TestMySource(SourceConformance):
    part = Part(name="parity", factory="acme.parity:Parity", config=ParityConfig(digits=3))
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar
from unittest import SkipTest

from rlcore.api.errors import DataError
from rlcore.api.sources import (
    Cursor,
    DrawingSource,
    FileBackedSource,
    PairSource,
    Prompts,
    PromptSource,
    ResponseSource,
)
from rlcore.api.types import Json, Prompt
from rlcore_testing.conformance import Conformance, same

DRAWN = 5
"""Prompts that are drawn at a time."""


class SourceConformance(Conformance):
    """Subclass it as `Test…` and give `source` or `part`."""

    seen: ClassVar[int] = 200
    """Prompts of each set that are looked at, from its start."""

    def source(self) -> PromptSource:
        """A new instance."""
        made: PromptSource = self.part.build()
        return made

    # --- the properties --------------------------------------------------------------------------------

    def test_there_are_prompts(self) -> None:
        """To train on, and in each held-out set; each asks something."""
        offered = self.source().prompts()
        assert isinstance(offered, Prompts), f"prompts() gave a {type(offered).__name__}, not Prompts"
        for name, prompts in self._sets(offered):
            assert prompts, f"{name}: there is no prompt"
            for prompt in prompts:
                assert isinstance(prompt, Prompt), f"{name}: a {type(prompt).__name__}, not a Prompt"
                assert prompt.text, f"{name}: prompt {prompt.prompt_id!r} asks nothing"

    def test_ids_are_unique(self) -> None:
        """A run counts, resumes and seeds by them."""
        for name, prompts in self._sets(self.source().prompts()):
            ids = [prompt.prompt_id for prompt in prompts]
            twice = sorted({each for each in ids if ids.count(each) > 1})
            assert not twice, f"{name}: {twice[0]!r} is there twice"

    def test_it_says_the_same_again(self) -> None:
        """A resumed run builds it anew, and goes on in the middle: content and order stay."""
        again = dict(self._sets(self.source().prompts()))
        for name, prompts in self._sets(self.source().prompts()):
            same(again[name], prompts, f"built anew, {name}")

    def test_a_prompt_is_found_by_its_place(self) -> None:
        """A run reads them in an order of its own, some twice."""
        for name, prompts in _all_sets(self.source().prompts()).items():
            first = list(islice(prompts, min(self.seen, len(prompts))))
            assert len(first) == min(self.seen, len(prompts)), f"{name}: fewer prompts than its len"
            places = [*range(len(first) - 1, -1, -1), 0]
            same(
                [prompts[place] for place in places], [first[place] for place in places], f"{name}, by place"
            )

    def test_labels_and_metadata_are_json(self) -> None:
        """They go to the reward workers, and into samples and checkpoints."""
        for name, prompts in self._sets(self.source().prompts()):
            for prompt in prompts:
                for what, value in (
                    ("label", prompt.label),
                    ("metadata", dict(prompt.metadata)),
                    ("text", prompt.text),
                ):
                    _check_json(value, f"{name}: {what} of {prompt.prompt_id!r}")

    def test_files_that_it_reads_are_there(self) -> None:
        """A resumed run asks whether they have changed."""
        source = self.source()
        if not isinstance(source, FileBackedSource):
            raise SkipTest("it reads no files")
        files = source.files()
        assert files, "it names none"
        for file in files:
            assert "://" in file or Path(file).is_file(), f"{file}: no such file"

    def test_right_answers_are_given_to_each_prompt(self) -> None:
        """`with_responses`: one to each; the prompts are the same."""
        source = self.source()
        if not isinstance(source, ResponseSource):
            raise SkipTest("it knows no right answers")
        self._check_given(_known(source.with_responses), 1)

    def test_pairs_are_given_to_each_prompt(self) -> None:
        """`with_pairs`: a chosen and a rejected answer, which differ."""
        source = self.source()
        if not isinstance(source, PairSource):
            raise SkipTest("it knows no pairs")
        for prompt in self._check_given(_known(source.with_pairs), 2):
            assert prompt.responses[0] != prompt.responses[1], (
                f"{prompt.prompt_id!r}: chosen and rejected are equal"
            )

    def test_a_run_gets_as_many_as_it_asks_for(self) -> None:
        for number in (1, DRAWN, self.seen):
            drawn = self._cursor().take(number)
            assert len(drawn) == number, f"asked for {number}, got {len(drawn)}"
            assert all(isinstance(prompt, Prompt) for prompt, _ in drawn), "take gives (prompt, epoch)"

    def test_a_resumed_run_draws_what_the_other_would_have_drawn(self) -> None:
        """Its state is JSON, and holds the scores that it has learned from."""
        cursor, resumed = self._cursor(), self._cursor()
        _draw_and_learn(cursor)
        resumed.load(_check_json(cursor.state(), "its state"))
        for _ in range(3):
            same(_draw_and_learn(resumed), _draw_and_learn(cursor), "resumed, the draws")

    def test_equal_seeds_draw_equal_prompts(self) -> None:
        first, second = self._cursor(), self._cursor()
        for _ in range(3):
            same(_draw_and_learn(second), _draw_and_learn(first), "with the same seed, the draws")

    def test_metrics_say_how_far_it_is(self) -> None:
        cursor = self._cursor()
        cursor.take(DRAWN)
        metrics = cursor.metrics()
        assert "rollout/epoch" in metrics, f"rollout/epoch is missing among {sorted(metrics)}"
        assert all(isinstance(value, int | float) for value in metrics.values()), f"no numbers: {metrics}"

    # --- how they are checked --------------------------------------------------------------------------

    def _sets(self, given: Prompts) -> list[tuple[str, list[Prompt]]]:
        return [(name, list(islice(prompts, self.seen))) for name, prompts in _all_sets(given).items()]

    def _cursor(self) -> Cursor:
        source = self.source()
        if not isinstance(source, DrawingSource):
            raise SkipTest("core draws its prompts")
        return source.cursor(source.prompts().train, 0)

    def _check_given(self, offered: Prompts, count: int) -> list[Prompt]:
        given = list(islice(offered.train, self.seen))
        asked = list(islice(self.source().prompts().train, self.seen))
        same([prompt.prompt_id for prompt in given], [prompt.prompt_id for prompt in asked], "the prompts")
        for prompt in given:
            assert len(prompt.responses) == count, (
                f"{prompt.prompt_id!r} has {len(prompt.responses)}, expected {count}"
            )
        return given


def _known(given: Callable[[], Prompts]) -> Prompts:
    """What the source knows; it may say that these data hold none."""
    try:
        return given()
    except DataError as error:
        raise SkipTest(f"its data hold none: {error}") from error


def _all_sets(prompts: Prompts) -> dict[str, Sequence[Prompt]]:
    return {"train": prompts.train, **prompts.held_out}


def _draw_and_learn(cursor: Cursor) -> list[tuple[Prompt, int]]:
    drawn = cursor.take(DRAWN)
    for place, (prompt, _) in enumerate(drawn):
        cursor.learn(prompt.prompt_id, [float(place % 2), 1.0])
    return [(pickle.loads(pickle.dumps(prompt)), epoch) for prompt, epoch in drawn]


def _check_json(value: Json, what: str) -> Mapping[str, Json]:
    try:
        read: Mapping[str, Json] = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} is no JSON: {error}") from error
    return read
