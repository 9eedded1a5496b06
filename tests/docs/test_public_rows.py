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

USER = [{"role": "user", "content": "?"}]
CHAT = [*USER, {"role": "assistant", "content": "yes"}]
VERL = {"label_key": "reward_model.ground_truth", "metadata_key": "extra_info"}
COLUMNS = {"columns_as_metadata": True}
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


def verl(label: Any, **row: Any) -> dict[str, Any]:
    """A row as verl's scripts write it."""
    return {
        "data_source": "x",
        "prompt": USER,
        "reward_model": {"ground_truth": label},
        "extra_info": {},
        **row,
    }


TASKS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str]] = {
    "GSM8K": (
        {"question": "?", "answer": "48/2 = <<48/2=24>>24.\n#### 1,024"},
        {"prompt_key": "question", "label_key": "answer"},
        "math",
        "#### 1024",
        "#### 24",
    ),
    "MATH": (
        {"problem": "?", "solution": f"{'We see. ' * 90}So $x=\\boxed{{\\frac12}}$.", "level": "Level 1"},
        {"prompt_key": "problem", "label_key": "solution"},
        "math",
        "0.5",
        "2",
    ),
    "AIME": (
        {"ID": 1, "Problem": "?", "Answer": 204},
        {"prompt_key": "Problem", "label_key": "Answer"},
        "math",
        "204",
        "24",
    ),
    "Big-Math": (
        {"problem": "?", "answer": "x^2", "solve_rate": 0.5},
        {"prompt_key": "problem", "label_key": "answer"},
        "math",
        "$x^2$",
        "x",
    ),
    "DAPO-Math": (verl("34"), VERL, "math", "Answer: 34", "35"),
    "Skywork-OR1": (verl('["2", "\\\\frac{1}{3}"]'), VERL, "math", "\\boxed{1/3}", "3"),
    "OlympiadBench": (
        {"question": "?", "final_answer": ["$2$"], "unit": None},
        {"prompt_key": "question", "label_key": "final_answer"},
        "math",
        "2",
        "3",
    ),
    "TheoremQA": (
        {"Question": "?", "Answer": "True"},
        {"prompt_key": "Question", "label_key": "Answer"},
        "math",
        "\\boxed{True}",
        "\\boxed{False}",
    ),
    "SVAMP": (
        {"question_concat": "?", "Answer": "8.0"},
        {"prompt_key": "question_concat", "label_key": "Answer"},
        "math",
        "8",
        "80",
    ),
    "RLVR": (
        {"messages": USER, "ground_truth": "6", "dataset": "gsm8k"},
        {"prompt_key": "messages", "label_key": "ground_truth"},
        "math",
        "6",
        "7",
    ),
    "MMLU": (
        {"question": "?", "choices": ["a", "b", "c", "d"], "answer": 1},
        {"prompt_key": "question", "label_key": "answer", **COLUMNS},
        "choice",
        "The answer is B.",
        "The answer is C.",
    ),
    "ARC": (
        {"question": "?", "choices": {"text": ["sun", "sea"], "label": ["1", "2"]}, "answerKey": "2"},
        {"prompt_key": "question", "label_key": "answerKey", **COLUMNS},
        "choice",
        "So B.",
        "So A.",
    ),
    "MMLU-Pro": (
        {"question": "?", "options": ["a"] * 10, "answer": "I"},
        {"prompt_key": "question", "label_key": "answer"},
        "ten",
        "So I.",
        "So A.",
    ),
    "GPQA": (
        {"Question": "?", "Correct Answer": "blue"},
        {"prompt_key": "Question", "label_key": "Correct Answer"},
        "exact",
        "blue",
        "red",
    ),
    "MBPP": (
        {"text": "?", "code": "def f(x):\n    return x + 1", "test_list": ["assert f(1) == 2"]},
        {"prompt_key": "text", "label_key": "test_list", **COLUMNS},
        "mbpp",
        "f = lambda x: x + 1",
        "f = int",
    ),
    "APPS": (
        {"question": "?", "input_output": json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[2]]})},
        {"prompt_key": "question", "label_key": "input_output"},
        "code",
        "class Solution:\n    def f(self, x): return 2",
        "f = int",
    ),
    "Eurus-2": (verl(json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})), VERL, "code", "print(2)", "no"),
    "code_contests": (
        {"description": "?", "public_tests": {"input": ["1"], "output": ["2"]}},
        {"prompt_key": "description", "label_key": "public_tests"},
        "code",
        "print(2)",
        "1",
    ),
    "LiveCodeBench": (
        {"question_content": "?", "tests": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])},
        {"prompt_key": "question_content", "label_key": "tests"},
        "code",
        "print(2)",
        "1",
    ),
    "NQ": (
        {"question": "?", "golden_answers": ["Rome", "Roma"]},
        {"prompt_key": "question", "label_key": "golden_answers"},
        "exact",
        "Roma",
        "Paris",
    ),
    "SQuAD": (
        {"question": "?", "answers": {"text": ["in May"], "answer_start": [1]}},
        {"prompt_key": "question", "label_key": "answers.text"},
        "f1",
        "In May.",
        "June",
    ),
    "IFEval": (
        {
            "key": 1,
            "prompt": "?",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{"num_words": None}],
        },
        COLUMNS,
        "ifeval",
        "Yes.",
        "Yes, no.",
    ),
}


def source(folder: Path, row: dict[str, Any], settings: dict[str, Any]) -> FileSource:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return FileSource(FileConfig(path=str(path), **settings))


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_to_a_public_row_has_its_score(tmp_path: Path, name: str) -> None:
    row, settings, chosen, right, wrong = TASKS[name]
    [prompt] = source(tmp_path, row, settings).prompts().train
    factory, config = REWARDS[chosen]
    assert [*factory.prompt_complaints(config, [prompt])] == [""]
    answers = [replace(sample(text), prompt=prompt) for text in (right, wrong)]
    assert [score.value for score in factory(config).score(answers)] == [1.0, 0.0]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "HumanEval": (
        {"prompt": "?", "test": "def check(candidate):\n    assert candidate(1) == 2"},
        {"label_key": "test"},
        "nothing calls 'check'",
    ),
    "KodCode": (
        {"question": "?", "test": "from solution import f\n\ndef test_f():\n    assert f(1) == 2"},
        {"prompt_key": "question", "label_key": "test"},
        "imports 'solution'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_public_row_that_tests_nothing_is_refused(tmp_path: Path, name: str) -> None:
    row, settings, fault = REFUSED[name]
    [prompt] = source(tmp_path, row, settings).prompts().train
    [complaint] = Code.prompt_complaints(CodeConfig(), [prompt])
    assert fault in complaint


LEARNT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "Alpaca": (
        {"instruction": "?", "output": "yes"},
        {"prompt_key": "instruction", "response_key": "output"},
        "responses",
    ),
    "Dolly": (
        {"instruction": "?", "context": "", "response": "yes"},
        {"prompt_key": "instruction"},
        "responses",
    ),
    "Tulu": ({"id": "1", "messages": CHAT, "source": "x"}, {}, "responses"),
    "UltraChat": ({"prompt": "?", "prompt_id": "1", "messages": CHAT}, {}, "responses"),
    "Nemotron": (
        {"input": USER, "output": "yes"},
        {"prompt_key": "input", "response_key": "output"},
        "responses",
    ),
    "Orca pairs": ({"question": "?", "chosen": "yes", "rejected": "no"}, {"prompt_key": "question"}, "pairs"),
    "UltraFeedback": (
        {"prompt": "?", "chosen": CHAT, "rejected": [*USER, {"role": "assistant", "content": "no"}]},
        {},
        "pairs",
    ),
    "UltraFeedback chats": ({"prompt": USER, "chosen": CHAT[1:], "rejected": CHAT[1:]}, {}, "pairs"),
}


@pytest.mark.parametrize("name", LEARNT)
def test_the_response_of_a_public_row_is_learnt(tmp_path: Path, name: str) -> None:
    row, settings, kind = LEARNT[name]
    found: list[Prompt] = list(getattr(source(tmp_path, row, settings), f"with_{kind}")().train)
    answer = found[0].responses[0]
    assert (answer if isinstance(answer, str) else answer[0]["content"]) == "yes"


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
FUNCTION = {
    "name": "f",
    "description": "?",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer", "description": "?"}}},
}
TALKS: dict[str, dict[str, Any]] = {
    "two turns": {
        "messages": [*CHAT, {"role": "user", "content": "so?"}, {"role": "assistant", "content": "no"}]
    },
    "thoughts": {"messages": [*USER, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]},
    "thoughts in the text": {
        "messages": [*USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}]
    },
    "a call": {
        "messages": [
            *USER,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "2"},
            {"role": "assistant", "content": "yes"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
}
FORMS = {"mistral": MISTRAL, "minimax": MINIMAX}
QWEN, LLAMA = "<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n"
TEMPLATES: dict[tuple[str, str], list[str]] = {
    ("qwen2_5", "two turns"): [
        f"<|im_end|>\n{QWEN}¦⟦yes<|im_end|>⟧\n<|im_start|>user\nso?<|im_end|>\n{QWEN}⟦no<|im_end|>⟧"
    ],
    ("qwen3", "two turns"): [
        f"<|im_end|>\n{QWEN}¦⟦<think>\n\n</think>\n\n{said}<|im_end|>⟧" for said in ("yes", "no")
    ],
    ("qwen3", "thoughts in the text"): [f"<|im_end|>\n{QWEN}¦⟦<think>\nhm\n</think>\n\nyes<|im_end|>⟧"],
    ("qwen3_5_think", "thoughts"): [f"<|im_end|>\n{QWEN}<think>\n¦⟦hm\n</think>\n\nyes<|im_end|>⟧"],
    ("qwen3_5_nothink", "a call"): [
        f"<|im_end|>\n{QWEN}<think>\n\n</think>\n\n¦⟦<tool_call>\n<function=f>\n<parameter=x>\n1\n"
        "</parameter>\n</function>\n</tool_call><|im_end|>⟧\n<|im_start|>user\n<tool_response>\n2\n"
        f"</tool_response><|im_end|>\n{QWEN}<think>\n\n</think>\n\n⟦yes<|im_end|>⟧"
    ],
    ("nemotron_3_nano", "thoughts"): [f"<|im_end|>\n{QWEN}<think>\n¦⟦hm\n</think>\nyes<|im_end|>⟧"],
    ("llama3_2", "a call"): [
        f'<|eot_id|>{LLAMA}¦⟦{{"name": "f", "parameters": {{"x": 1}}}}<|eot_id|>⟧<|start_header_id|>ipython'
        f'<|end_header_id|>\n\n"2"<|eot_id|>{LLAMA}⟦yes<|eot_id|>⟧'
    ],
    ("glm4moe", "a call"): [
        "<|assistant|>¦⟦\n<think></think>\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n"
        "</tool_call><|observation|>⟧\n<tool_response>\n2\n</tool_response><|assistant|>"
        "⟦\n<think></think>\nyes<|user|>⟧"
    ],
    ("gptoss", "thoughts"): [
        "<|end|><|start|>assistant¦⟦<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final"
        "<|message|>yes<|return|>⟧"
    ],
    ("gptoss", "a call"): [
        '<|end|><|start|>assistant¦⟦ to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>⟧'
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"2"<|end|><|start|>assistant'
        "⟦<|channel|>final<|message|>yes<|return|>⟧"
    ],
    ("gemma3", "two turns"): [
        "<end_of_turn>\n<start_of_turn>model\n¦⟦yes<end_of_turn>⟧\n<start_of_turn>user\nso?<end_of_turn>\n"
        "<start_of_turn>model\n⟦no<end_of_turn>⟧"
    ],
    ("gemma4", "a call"): [
        "<turn|>\n<|turn>model\n¦⟦<|tool_call>call:f{x:1}<tool_call|><|tool_response>⟧"
        'response:f{value:<|"|>2<|"|>}<tool_response|>⟦yes<turn|>⟧'
    ],
    ("phi3", "two turns"): [
        "<|end|>\n<|assistant|>\n¦⟦yes<|end|>⟧\n<|user|>\nso?<|end|>\n<|assistant|>\n⟦no<|end|>⟧"
    ],
    ("mistral", "a call"): [
        '[/INST]¦⟦[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]<eos>⟧[TOOL_RESULTS] 2[/TOOL_RESULTS]'
        "⟦ yes<eos>⟧"
    ],
    ("minimax", "two turns"): ["[e~[\n]~b]ai\n¦⟦yes[e~[⟧\n]~b]user\nso?[e~[\n]~b]ai\n⟦no[e~[⟧"],
}
"""Template and talk → what is trained on, in ⟦ ⟧, behind the first words of the assistant's turn (¦)."""


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
    [prompt] = source(folder, TALKS[talk], {}).with_responses().train
    extra = {"gemma4": GEMMA_TOOLS, "minimax": ("[e~[", "]~b]")}.get(name, ())
    by = tokenizer(FORMS.get(name) or shipped(name), *extra)
    found = ResponseEncoder(PromptTokenizer(by, 4000), 400).encode(prompt, prompt.responses[0])
    return [shown(by, given) for given in found]


@pytest.mark.parametrize(("name", "talk"), TEMPLATES)
def test_a_public_template_says_what_is_trained_on(tmp_path: Path, name: str, talk: str) -> None:
    assert learnt(tmp_path, name, talk) == TEMPLATES[name, talk]


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
