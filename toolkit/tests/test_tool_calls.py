"""Tool calls in the text of each family."""

from typing import Any

import pytest

from rlcore.api.errors import ModelError
from rlcore_testing.chat import TEMPLATES
from rlcore_toolkit import ParsedToolCalls, ToolCall, ToolFormat, parse_tool_calls, tool_format

LOOK = ToolCall(name="look", arguments={"where": "Rome", "days": 3})
WAIT = ToolCall(name="wait", arguments={})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"where": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
TEXTS = {
    ToolFormat.HERMES: 'Well.\n<tool_call>\n{"name": "look", "arguments": {"where": "Rome", "days": 3}}\n'
    '</tool_call>\n<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
    ToolFormat.GLM: "Well.\n<tool_call>look\n<arg_key>where</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>wait\n</tool_call>",
    ToolFormat.QWEN_XML: "Well.\n<tool_call>\n<function=look>\n<parameter=where>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=wait>\n</function>\n</tool_call>",
    ToolFormat.LLAMA: 'Well.<|python_tag|>{"name": "look", "parameters": {"where": "Rome", "days": 3}}; '
    '{"name": "wait", "parameters": {}}<|eom_id|>',
    ToolFormat.DEEPSEEK: "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n"
    '```json\n{"where": "Rome", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
    "<｜tool▁sep｜>wait\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize("how", ToolFormat)
def test_two_calls_after_some_words(how: ToolFormat) -> None:
    assert parse_tool_calls(TEXTS[how], how, TOOLS) == ParsedToolCalls(content="Well.", calls=(LOOK, WAIT))


@pytest.mark.parametrize("how", ToolFormat)
def test_words_alone(how: ToolFormat) -> None:
    assert parse_tool_calls(" 12 \n", how, TOOLS) == ParsedToolCalls(content="12", calls=())


def test_deepseek_v3_1_writes_no_fence() -> None:
    text = '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"where": "Rome", "days": 3}<｜tool▁call▁end｜>'
    assert parse_tool_calls(text, ToolFormat.DEEPSEEK).calls == (LOOK,)


def test_llama_without_its_tag() -> None:
    text = '{"name": "look", "parameters": {"where": "Rome", "days": 3}}'
    assert parse_tool_calls(text, ToolFormat.LLAMA).calls == (LOOK,)


def test_an_argument_without_a_type_is_what_it_looks_like() -> None:
    text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n"
    text += "<arg_key>b</arg_key>\n<arg_value>[x</arg_value></tool_call>"
    (call,) = parse_tool_calls(text, ToolFormat.GLM).calls
    assert call.arguments == {"a": 3, "b": "[x"}
    schema = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
    (call,) = parse_tool_calls(text, ToolFormat.GLM, [{"type": "function", "function": schema}]).calls
    assert call.arguments == {"a": "3", "b": "[x"}
    anything: tuple[Any, ...] = ([], {"a": 5})
    for properties in anything:  # which an agent may send
        schema = {"name": "f", "parameters": {"properties": properties}}
        (call,) = parse_tool_calls(text, ToolFormat.GLM, [{"type": "function", "function": schema}]).calls
        assert call.arguments == {"a": 3, "b": "[x"}


@pytest.mark.parametrize(
    ("how", "text", "reason"),
    [
        (ToolFormat.HERMES, "<tool_call>{no}</tool_call>", "JSONDecodeError"),
        (ToolFormat.HERMES, "<tool_call>[1]</tool_call>", "an object with a name"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "no object"),
        (ToolFormat.HERMES, '<tool_call>{"name": "f"', "does not end"),
        (ToolFormat.GLM, "<tool_call><arg_key>a</arg_key></tool_call>", "without a name"),
        (ToolFormat.QWEN_XML, "<tool_call>f()</tool_call>", "that ends"),
        (ToolFormat.LLAMA, '{"name": "f", "parameters": {}', "JSONDecodeError"),
        (ToolFormat.LLAMA, '{"name": ' + "[" * 10**5, "RecursionError"),
        (ToolFormat.HERMES, f"<tool_call>{'[' * 10**5}</tool_call>", "nested too deeply"),
        (ToolFormat.DEEPSEEK, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{<｜tool▁call▁end｜>", "JSONDecodeError"),
    ],
)
def test_what_is_no_call_stays_text(how: ToolFormat, text: str, reason: str) -> None:
    found = parse_tool_calls(text, how)
    assert (found.content, found.calls) == (text, ())
    assert reason in found.malformed[0]


def test_a_good_call_beside_a_bad_one() -> None:
    text = '<tool_call>{"name": "wait"}</tool_call><tool_call>{</tool_call>'
    found = parse_tool_calls(text, ToolFormat.HERMES)
    assert found.calls == (WAIT,)
    assert found.content == "<tool_call>{</tool_call>"
    assert len(found.malformed) == 1


@pytest.mark.parametrize(("how", "template"), TEMPLATES.items())
def test_the_template_tells_the_format(how: ToolFormat, template: str) -> None:
    assert tool_format(template) is how


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
def test_a_template_without_tools(template: str | None) -> None:
    with pytest.raises(ModelError, match="no tool calls in a known format; expected one of deepseek, glm"):
        tool_format(template)
