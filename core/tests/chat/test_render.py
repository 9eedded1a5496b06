"""Chats that grow by sampled ids and rendered suffixes, for each family's way of ending a turn."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from jinja2 import Environment

from rlcore import DataError, Prompt, PromptTokenizer, load_tokenizer
from rlcore_testing.chat import END, TEMPLATES, save_chat_tokenizer
from rlcore_toolkit import ToolFormat, compile_template, render_prompt, render_suffix

USER = {"role": "user", "content": "add 1 and 2"}
TOOL = {"role": "tool", "content": "3", "tool_call_id": "call_1"}
SCHEMAS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SAID = {
    ToolFormat.HERMES: '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    ToolFormat.GLM: "\n<think></think>\n<tool_call>add\n<arg_key>a</arg_key>\n"
    "<arg_value>1</arg_value>\n</tool_call>",
    ToolFormat.LLAMA: '{"name": "add", "parameters": {"a": 1}}',
    ToolFormat.DEEPSEEK: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}
"""What the model writes to call `add`, and what the template writes of the same call."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ToolFormat], Any]:
    made = {}
    for how in TEMPLATES:
        path = tmp_path_factory.mktemp(how)
        save_chat_tokenizer(path, how)
        made[how] = load_tokenizer(path)
    return made.__getitem__


def text(tokenizer: Any, ids: Any) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


@pytest.mark.parametrize("how", TEMPLATES)
@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_goes_on_as_the_template_would_write_it(
    tokenizers: Callable[[ToolFormat], Any], how: ToolFormat, ended: bool
) -> None:
    tokenizer = tokenizers(how)
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    prompt = render_prompt(tokenizer, [USER], SCHEMAS)
    sampled = tokenizer.encode(SAID[how] + (END[how] if ended else ""), add_special_tokens=False)
    suffix = render_suffix(tokenizer, [USER, assistant], [TOOL], sampled=sampled, tools=SCHEMAS)
    whole = render_prompt(tokenizer, [USER, assistant, TOOL], SCHEMAS)
    expected = text(tokenizer, whole)
    if how is ToolFormat.HERMES:
        expected = expected.replace("\n\n<tool_call>", "\n<tool_call>")  # its own line, where nothing is said
    assert text(tokenizer, [*prompt, *sampled, *suffix]) == expected


def test_what_was_thought_stays(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.HERMES)
    said, question = (
        {"role": "assistant", "content": "<think>\nhm\n</think>\n3"},
        {**USER, "content": "and 2?"},
    )
    assert "hm" not in text(tokenizer, render_prompt(tokenizer, [USER, said, question]))
    sampled = tokenizer.encode(str(said["content"]) + "<|im_end|>", add_special_tokens=False)
    suffix = render_suffix(tokenizer, [USER, said], [question], sampled=sampled)
    assert text(tokenizer, suffix) == "\n<|im_start|>user\nand 2?<|im_end|>\n<|im_start|>assistant\n"


def test_the_model_goes_on_with_its_last_message(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.HERMES)
    ids = render_prompt(tokenizer, [USER, {"role": "assistant", "content": "It is"}])
    assert text(tokenizer, ids).endswith("<|im_start|>assistant\nIt is")
    prompt = Prompt(prompt_id="p", text=(USER, {"role": "assistant", "content": "It is"}))
    assert PromptTokenizer(tokenizer, 99).encode(prompt) == ids


def test_another_stop_token_stays(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.GLM)
    sampled = tokenizer.encode("3<|endoftext|>", add_special_tokens=False)
    suffix = render_suffix(tokenizer, [USER, {"role": "assistant", "content": "3"}], [USER], sampled=sampled)
    assert text(tokenizer, suffix) == "<|user|>\nadd 1 and 2<|assistant|>"


def test_the_ids_are_those_of_the_new_messages_alone(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.HERMES)
    spelled = [
        *tokenizer.encode("t", add_special_tokens=False),
        *tokenizer.encode("ool", add_special_tokens=False),
    ]
    assert tokenizer.encode("tool", add_special_tokens=False) != spelled
    prompt, said = render_prompt(tokenizer, [USER]), {"role": "assistant", "content": "tool"}
    suffix = render_suffix(tokenizer, [USER, said], [USER, USER], sampled=spelled)
    grown = [*prompt, *spelled, *suffix]
    assert text(tokenizer, grown) == text(tokenizer, render_prompt(tokenizer, [USER, said, USER, USER]))
    assert tuple(grown) != render_prompt(tokenizer, [USER, said, USER, USER])


def test_text_that_looks_like_the_seam(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.HERMES)
    said = {"role": "assistant", "content": "3"}
    odd = {"role": "user", "content": "rlcoreseam rlcoreseamx"}
    suffix = render_suffix(tokenizer, [USER, said], [odd], sampled=[1])
    assert text(tokenizer, suffix).startswith(
        "<|im_end|>\n<|im_start|>user\nrlcoreseam rlcoreseamx<|im_end|>"
    )


def test_parts_of_text(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.LLAMA)
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "add 1 "}, {"type": "text", "text": "and 2"}],
    }
    assert render_prompt(tokenizer, [parts]) == render_prompt(tokenizer, [USER])
    with pytest.raises(DataError, match="A message holds 'image_url'; expected text alone"):
        render_prompt(tokenizer, [{"role": "user", "content": [{"type": "image_url"}]}])


def test_a_chat_that_cannot_be_written(tokenizers: Callable[[ToolFormat], Any]) -> None:
    tokenizer = tokenizers(ToolFormat.HERMES)
    with pytest.raises(DataError, match="goes on after a message of the assistant"):
        render_suffix(tokenizer, [USER], [USER], sampled=[1])
    with pytest.raises(DataError, match="cannot format the chat"):
        render_prompt(tokenizer, [{"role": "user", "content": "x"}], [object()])  # type: ignore[list-item]
    with pytest.raises(DataError, match="role 'robot'"):
        render_prompt(tokenizer, [{"role": "robot", "content": "x"}])
    bad = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
    with pytest.raises(DataError, match="are no JSON"):
        render_prompt(tokenizer, [USER, bad])


def test_a_template_is_compiled_ahead_even_where_it_refuses_the_first_chat(
    tokenizers: Callable[[ToolFormat], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = deepcopy(tokenizers(ToolFormat.HERMES))
    tokenizer.chat_template = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}one"
    compile_template(tokenizer)

    def compiled_late(self: Environment, *args: object, **how: object) -> None:
        raise AssertionError("the template was not compiled")

    monkeypatch.setattr(Environment, "compile", compiled_late)
    render_prompt(tokenizer, [USER], SCHEMAS)
    with pytest.raises(DataError, match="no tools"):
        render_prompt(tokenizer, [USER])
