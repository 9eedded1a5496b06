"""What a source may return, and how anything else is told."""

import re
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from rlcore import DataConfig, Part, PluginError, Prompt, Prompts
from rlcore.preparation.eval_sets import held_out, prompts_of

SOURCE = Part(name="mine", factory="builtins:list")
"""What it builds is not looked at: each test says what was returned."""


def rows(**changes: Any) -> list[Prompt]:
    """Three prompts, of which the last one has `changes`."""
    plain: list[dict[str, Any]] = [{"prompt_id": f"q{number}", "text": "?"} for number in range(3)]
    plain[2] |= changes
    return [Prompt(**row) for row in plain]


def offers(train: Any, held_out: Any = MappingProxyType({})) -> Prompts:
    """Of whatever type."""
    return Prompts(train=train, held_out=held_out)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda: None, "returned None; expected Prompts."),
        (rows, "returned a list; expected Prompts."),
        (
            lambda: offers(train=(row for row in rows())),
            "returned a generator as `train`; expected a sequence of prompts, such as a list.",
        ),
        (lambda: offers(train={"q": rows()}), "returned a dict as `train`; expected a sequence of prompts"),
        (
            lambda: offers(train=[{"prompt": "?"}]),
            "returned a dict as number 0 of `train`; expected a Prompt.",
        ),
        (
            lambda: offers(train=rows(text=33)),
            "returned 33 as the text of the prompt 'q2' of `train`; expected a text or a list of messages.",
        ),
        (lambda: offers(train=rows(prompt_id=3)), "returned 3 as the id of number 2 of `train`; expected a"),
        (
            lambda: offers(train=rows(prompt_id="q1")),
            "returned the prompt 'q1' of `train` twice; expected ids",
        ),
        (lambda: offers(train=rows(), held_out=rows()), "returned a list as `held_out`; expected sets of"),
        (
            lambda: offers(train=rows(), held_out={"a": rows(text=None)}),
            "returned None as the text of the prompt 'q2' of the held-out set 'a'; expected a text",
        ),
    ],
)
def test_a_source_that_returns_something_else_is_told(returns: Callable[[], Any], message: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"The source 'mine' {message}")):
        prompts_of(SOURCE, lambda source: returns())


def test_what_a_source_may_return() -> None:
    chat = rows(text=({"role": "user", "content": "?"},))
    offered = Prompts(train=tuple(chat), held_out={"a": rows(), "b": chat})
    assert prompts_of(SOURCE, lambda source: offered) is offered


def test_what_scores_held_out_prompts() -> None:
    """Of a task those with labels match exactly; of the user's own data the run's reward scores all."""
    run = SimpleNamespace(evaluation=SimpleNamespace(eval_prompts=1))
    own = Part(name="own", factory="builtins:list", config=DataConfig(path="a.jsonl"))
    for source, of_labeled in ((SOURCE, "exact_match"), (own, "auto")):
        chosen: Any = SimpleNamespace(run=run, source=source)
        found = held_out(chosen, offers(rows(), {"bare": rows(), "labeled": rows(label="c")[2:]}))
        scored = {one.name: one.settings.config.score_by for one in found}
        assert scored == {"bare": "auto", "labeled": of_labeled}
