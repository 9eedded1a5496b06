"""Tool calls as each family writes them: found in sampled text, by the format of the chat template."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlcore import Json, ModelError, parse_json

_DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"


class ToolFormat(StrEnum):
    """How a model writes a tool call.

    `hermes`: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen2.5, Qwen3). `glm`:
    `<tool_call>name`, then pairs of `<arg_key>` and `<arg_value>` (GLM-4.5 to 4.7). `qwen_xml`:
    `<function=…>` with `<parameter=…>` within (Qwen3-Coder, Qwen3.5). `llama`: bare JSON with `parameters`
    (Llama 3.1 and later). `deepseek`: `<｜tool▁call▁begin｜>` and its like (DeepSeek-V3, V3.1, R1).
    """

    HERMES = "hermes"
    GLM = "glm"
    QWEN_XML = "qwen_xml"
    LLAMA = "llama"
    DEEPSEEK = "deepseek"


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call that the model made."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class ParsedToolCalls:
    """What a sampled text says.

    `content`: the text beside the calls, stripped. `malformed`: why something that begins as a call is none;
    its text stays in `content`.
    """

    content: str
    calls: tuple[ToolCall, ...]
    malformed: tuple[str, ...] = ()


_MARKS: Mapping[ToolFormat, tuple[str, ...]] = {
    ToolFormat.DEEPSEEK: (_DEEPSEEK_BEGIN,),
    ToolFormat.GLM: ("<arg_key>",),
    ToolFormat.QWEN_XML: ("<function=",),
    ToolFormat.HERMES: ("<tool_call>",),
    ToolFormat.LLAMA: ("ipython", '"parameters": '),
}
"""What only the templates of a format say, the more particular first: `<tool_call>` stands in three."""


def tool_format(template: str | None, flag: str = "an option of the generator") -> ToolFormat:
    """The format that a chat template tells the model to use.

    Raises `ModelError` if it names none; `flag`: where the user can name one.
    """
    for dialect, marks in _MARKS.items():
        if template and all(mark in template for mark in marks):
            return dialect
    raise ModelError(
        "The chat template describes no tool calls in a known format; expected one of "
        f"{', '.join(_MARKS)}: name one by {flag}."
    )


def parse_tool_calls(text: str, how: ToolFormat, tools: Sequence[Mapping[str, Json]] = ()) -> ParsedToolCalls:
    """The tool calls in `text`, which the model sampled; special tokens may be left out of it or not.

    `tools`: JSON schemas as chat templates take them (`{"type": "function", "function": {…}}`). Formats
    without types (`glm`, `qwen_xml`) read an argument by its schema; without one, as JSON if it is JSON. A
    name that is not among them is still a call: whether it exists is the caller's to judge.
    """
    if how is ToolFormat.LLAMA:
        return _parse_llama(text)
    pattern, read = _READERS[how]
    calls: list[ToolCall] = []
    malformed: list[str] = []

    def take(match: re.Match[str]) -> str:
        try:
            calls.append(read(match, tools))
        except (ValueError, KeyError, TypeError) as error:
            malformed.append(f"{type(error).__name__}: {error}")
            return match[0]
        return ""

    rest = pattern.sub(take, text)
    if how is ToolFormat.DEEPSEEK and calls and not malformed:
        rest = re.sub("<｜tool▁calls▁(begin|end)｜>", "", rest)
    if _OPENING[how] in rest and not malformed:
        malformed.append("ValueError: a call that does not end")
    return ParsedToolCalls(content=rest.strip(), calls=tuple(calls), malformed=tuple(malformed))


def _call(value: Any, key: str = "arguments") -> ToolCall:
    """From the object that a model wrote; the arguments may be missing, or a text of JSON."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {value['name']!r} are no object")
    return ToolCall(name=value["name"], arguments=arguments)


def _glm(match: re.Match[str], tools: Sequence[Mapping[str, Json]]) -> ToolCall:
    name, _, rest = match[1].partition("<arg_key>")
    pattern = r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
    return _typed(name, re.findall(pattern, f"<arg_key>{rest}", re.DOTALL), tools)


def _qwen_xml(match: re.Match[str], tools: Sequence[Mapping[str, Json]]) -> ToolCall:
    function = re.search(r"<function=([^>]*)>(.*?)</function>", match[1], re.DOTALL)
    if function is None:
        raise ValueError("no <function=…> that ends")
    pairs = re.findall(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", function[2], re.DOTALL)
    return _typed(function[1], pairs, tools)


def _typed(name: str, pairs: Sequence[tuple[str, str]], tools: Sequence[Mapping[str, Json]]) -> ToolCall:
    name = name.strip()
    if not name or "<" in name:
        raise ValueError("a call without a name")
    types = _types(name, tools)
    return ToolCall(
        name=name, arguments={key.strip(): _value(value, types.get(key.strip())) for key, value in pairs}
    )


def _types(name: str, tools: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Argument → the type that its JSON schema names."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties")
            if not isinstance(properties, Mapping):
                return {}
            described = {key: schema for key, schema in properties.items() if isinstance(schema, Mapping)}
            return {key: schema.get("type") for key, schema in described.items()}
    return {}


def _value(text: str, kind: Json) -> Json:
    if kind == "string":
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _deepseek(match: re.Match[str], tools: Sequence[Mapping[str, Json]]) -> ToolCall:
    name, body = match[1].strip(), match[2].strip()
    fenced = re.fullmatch(r"(.*?)\n```json\n(.*)\n```", body, re.DOTALL)  # V3, R1; V3.1: name, then arguments
    if fenced is not None:
        name, body = fenced[1].strip(), fenced[2]
    return _call({"name": name, "arguments": parse_json(body)})


def _parse_llama(text: str) -> ParsedToolCalls:
    """One JSON object, or several separated by `;`, after `<|python_tag|>` or from the start on."""
    before, tag, after = text.partition("<|python_tag|>")
    content, body = (before, after) if tag else ("", text)
    body = re.sub(r"<\|(eot_id|eom_id)\|>", "", body).strip()
    if not tag and not body.startswith("{"):
        return ParsedToolCalls(content=text.strip(), calls=())
    calls: list[ToolCall] = []
    decoder, place = json.JSONDecoder(), 0
    try:
        while place < len(body):
            value, place = decoder.raw_decode(body, place)
            calls.append(_call(value, "parameters" if "parameters" in value else "arguments"))
            place += len(body[place:]) - len(body[place:].lstrip("; \n"))
    except (ValueError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        return ParsedToolCalls(content=text.strip(), calls=(), malformed=(why,))
    return ParsedToolCalls(content=content.strip(), calls=tuple(calls))


Reader = Callable[[re.Match[str], Sequence[Mapping[str, Json]]], ToolCall]
_MARKED = re.compile("<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_READERS: Mapping[ToolFormat, tuple[re.Pattern[str], Reader]] = {
    ToolFormat.HERMES: (_TAGGED, lambda match, _: _call(parse_json(match[1]))),
    ToolFormat.GLM: (_TAGGED, _glm),
    ToolFormat.QWEN_XML: (_TAGGED, _qwen_xml),
    ToolFormat.DEEPSEEK: (_MARKED, _deepseek),
}
_OPENING: Mapping[ToolFormat, str] = {how: "<tool_call>" for how in _READERS} | {
    ToolFormat.DEEPSEEK: _DEEPSEEK_BEGIN
}
