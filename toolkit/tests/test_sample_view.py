"""What trackers show of samples."""

from dataclasses import replace
from typing import Any

from rlcore.api.types import Prompt, Score
from rlcore_testing.samples import sample_of
from rlcore_toolkit import SampleView

CHAT = ({"role": "user", "content": "é"},)
FIRST = sample_of(
    (7, 8),
    prompt=Prompt(prompt_id="p", text="12", label="21"),
    prompt_ids=(1, 2),
    text="2",
    score=Score(value=0.5),
)
SECOND = replace(FIRST, prompt=Prompt(prompt_id="q", text=CHAT, label={"a": 1}), score=None, response_ids=())


def test_rows_are_texts_and_a_score() -> None:
    view = SampleView([FIRST, SECOND])
    first, second = (dict(zip(view.COLUMNS, row, strict=True)) for row in view.rows(8))
    assert first == {"prompt_id": "p", "prompt": "12", "response": "2", "label": "21", "score": 0.5}
    assert second["prompt"] == '[{"role": "user", "content": "é"}]'
    assert (second["label"], second["score"]) == ('{"a": 1}', None)
    assert len(view.rows(1)) == 1
    assert view.rows(0) == []


def test_distributions_are_of_what_there_is() -> None:
    assert SampleView([FIRST, SECOND]).distributions == {"reward": [0.5], "response_tokens": [2.0, 0.0]}
    assert SampleView([SECOND]).distributions == {"response_tokens": [0.0]}
    assert SampleView([]).distributions == {}


def test_a_figure_has_a_histogram_of_each_distribution() -> None:
    axes: list[Any] = SampleView([FIRST, SECOND]).figure().axes  # of a bar, matplotlib types the base alone
    reward, tokens = axes
    assert (reward.get_xlabel(), tokens.get_xlabel()) == ("reward", "response_tokens")
    assert sum(bar.get_height() for bar in tokens.patches) == 2
    assert not SampleView([]).figure().axes


def test_a_saved_rollout_has_advantages() -> None:
    saved = replace(FIRST, extras={"advantages": [0.1, 0.2]})
    assert SampleView([saved]).saved
    assert not SampleView([FIRST]).saved
    assert not SampleView([]).saved
