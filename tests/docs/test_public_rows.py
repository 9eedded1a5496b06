"""Rows in the forms of public data sets are read as docs/data.md promises: up to the score of an answer,
and to the tokens of public chat templates.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from templates import GEMMA_TOOLS, MINIMAX, MISTRAL, shipped, tokenizer

from rlcore import DataError, Prompt, PromptTokenizer
from rlcore_choice.config import MultipleChoiceConfig
from rlcore_choice.reward import MultipleChoice
from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code
from rlcore_files.config import FileConfig
from rlcore_files.source import FileSource
from rlcore_ifeval.config import IfevalConfig
from rlcore_ifeval.reward import Ifeval
from rlcore_math.config import MathConfig
from rlcore_math.reward import Math
from rlcore_offline.responses import EncodedResponse, ResponseEncoder
from rlcore_testing.rewards import sample
from rlcore_text.config import ExactMatchConfig, F1Config
from rlcore_text.rewards import F1, ExactMatch

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("public_rows.json").read_text())
"""`judged`: rows with a reward, a right and a wrong answer; `refused`: rows that test nothing; `learnt`: rows
with responses; `talks`: chats; `trained`: what a template has trained of a chat, in ⟦ ⟧ behind the first
words of the assistant's turn (¦).
"""
REWARDS: dict[str, tuple[Any, Any]] = {
    "math": (Math, MathConfig()),
    "choice": (MultipleChoice, MultipleChoiceConfig()),
    "ten": (MultipleChoice, MultipleChoiceConfig(choices=10)),
    "code": (Code, CodeConfig(seconds=20)),
    "mbpp": (Code, CodeConfig(seconds=20, reference="code")),
    "ifeval": (Ifeval, IfevalConfig()),
    "exact": (ExactMatch, ExactMatchConfig()),
    "f1": (F1, F1Config()),
}


def source(folder: Path, row: dict[str, Any], settings: dict[str, Any]) -> FileSource:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return FileSource(FileConfig(path=str(path), **settings))


@pytest.mark.parametrize("case", DATA["judged"].values(), ids=DATA["judged"])
def test_an_answer_to_a_public_row_has_its_score(tmp_path: Path, case: dict[str, Any]) -> None:
    [prompt] = source(tmp_path, case["row"], case["settings"]).prompts().train
    factory, config = REWARDS[case["reward"]]
    assert [*factory.prompt_complaints(config, [prompt])] == [""]
    answers = [replace(sample(text), prompt=prompt) for text in (case["right"], case["wrong"])]
    assert [score.value for score in factory(config).score(answers)] == [1.0, 0.0]


@pytest.mark.parametrize("case", DATA["refused"].values(), ids=DATA["refused"])
def test_a_public_row_that_tests_nothing_is_refused(tmp_path: Path, case: dict[str, Any]) -> None:
    [prompt] = source(tmp_path, case["row"], case["settings"]).prompts().train
    [complaint] = Code.prompt_complaints(CodeConfig(), [prompt])
    assert case["fault"] in complaint


@pytest.mark.parametrize("case", DATA["learnt"].values(), ids=DATA["learnt"])
def test_the_response_of_a_public_row_is_learnt(tmp_path: Path, case: dict[str, Any]) -> None:
    files = source(tmp_path, case["row"], case["settings"])
    found: list[Prompt] = list(getattr(files, f"with_{case['kind']}")().train)
    answer = found[0].responses[0]
    assert (answer if isinstance(answer, str) else answer[0]["content"]) == "yes"


FORMS = {"mistral": MISTRAL, "minimax": MINIMAX}


def shown(by: Any, given: EncodedResponse) -> str:
    """The last turn's begin of the prompt, a mark, and the response with what is trained on in brackets."""
    begin = by.decode(given.prompt_ids, skip_special_tokens=False).rpartition("?")[2]
    text, live = f"{begin}¦", 0
    for token, trained in zip((*given.response_ids, 0), (*given.loss_mask, 0), strict=True):
        text, live = text + ("" if trained == live else "⟦" if trained else "⟧"), trained
        text += by.decode([token], skip_special_tokens=False)
    return text[:-1]


def learnt(folder: Path, name: str, talk: str) -> list[str]:
    """What the template `name` makes of the row `talk`."""
    [prompt] = source(folder, DATA["talks"][talk], {}).with_responses().train
    extra = {"gemma4": GEMMA_TOOLS, "minimax": ("[e~[", "]~b]")}.get(name, ())
    by = tokenizer(FORMS.get(name) or shipped(name), *extra)
    found = ResponseEncoder(PromptTokenizer(by, 4000), 400).encode(prompt, prompt.responses[0])
    return [shown(by, given) for given in found]


@pytest.mark.parametrize("case", DATA["trained"], ids=lambda case: f"{case['template']}, {case['talk']}")
def test_a_public_template_says_what_is_trained_on(tmp_path: Path, case: dict[str, Any]) -> None:
    assert learnt(tmp_path, case["template"], case["talk"]) == case["trained"]


@pytest.mark.parametrize(
    ("name", "talk", "fault"),
    [
        ("lfm2", "a call", "leaves out the call of 'f' of message 2"),
        ("gemma3", "thoughts", "leaves out the 'reasoning_content' of message 2"),
        ("gemma3", "a call", "roles must alternate"),
        ("smolvlm", "two turns", "leaves out the 'content' of message 2"),
        ("deepseekv3", "two turns", "begins an assistant's message in another way"),
    ],
)
def test_what_a_public_template_does_not_write_is_not_trained_on(
    tmp_path: Path, name: str, talk: str, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        learnt(tmp_path, name, talk)


@pytest.mark.parametrize("row", [{"text": "### Human: ?"}, {"chosen": "Human: ?", "rejected": "Human: !"}])
def test_a_public_row_without_a_prompt_names_its_columns(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"line 1: no 'prompt' .*found '{next(iter(row))}'"):
        source(tmp_path, row, {}).with_pairs()
