"""A small chat tokenizer with each family's way of writing turns and tool calls."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

from rlcore_toolkit import ToolFormat

QWEN = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}
Write <tool_call>{"name": name, "arguments": {...}}</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set text = message.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>assistant\n' + (message.content if loop.index0 > ns.last else text) }}
{%- for call in message.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Qwen3's kind: what was thought before the last question is left out of the history."""

GLM = """\
[gMASK]<sop>{% if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson }}{% endfor %}
Write <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|assistant|>\n<think></think>' }}
{%- if message.content.strip() %}{{ '\n' + message.content.strip() }}{% endif %}
{%- for call in message.tool_calls %}{{ '\n<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\n<arg_key>' + key + '</arg_key>\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{ '</arg_value>' }}{% endfor %}
{{- '\n</tool_call>' }}{% endfor %}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- else %}{{ '<|' + message.role + '|>\n' + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""GLM-4.5's kind: a turn has no end of its own, the next role's token ends it."""

LLAMA = """\
{{- bos_token }}
{%- if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- 'Respond in the format {"name": function name, "parameters": dictionary}<|eot_id|>' }}{% endif %}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
"""Llama 3.1's kind: one call a turn."""

DEEPSEEK = """\
{% set ns = namespace(is_tool=false) %}{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.is_tool = false %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}{% set ns.is_tool = false %}{{ '<｜Assistant｜>' + message.content }}
{%- if 'tool_calls' in message %}{{ '<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}
{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name }}
{{- '\n```json\n' + call.function.arguments + '\n```<｜tool▁call▁end｜>' }}{% endfor %}
{{- '<｜tool▁calls▁end｜>' }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{%- if not ns.is_tool %}{{ '<｜tool▁outputs▁begin｜>' }}{% endif %}{% set ns.is_tool = true %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- else %}{{ message.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜>' }}{% endif %}"""
"""DeepSeek-V3's kind: arguments are text, and after a tool's output the assistant goes on without a token."""

TEMPLATES: Mapping[ToolFormat, str] = {
    ToolFormat.HERMES: QWEN,
    ToolFormat.GLM: GLM,
    ToolFormat.LLAMA: LLAMA,
    ToolFormat.DEEPSEEK: DEEPSEEK,
}

END: Mapping[ToolFormat, str] = {
    ToolFormat.HERMES: "<|im_end|>",
    ToolFormat.GLM: "<|observation|>",
    ToolFormat.LLAMA: "<|eot_id|>",
    ToolFormat.DEEPSEEK: "<｜end▁of▁sentence｜>",
}
"""The token that ends a turn in which a tool is called."""

_SPECIAL: Mapping[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: ("<|im_start|>",),
    ToolFormat.GLM: ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
    ToolFormat.LLAMA: ("<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
    ToolFormat.DEEPSEEK: ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
}
_MERGES = (("t", "o"), ("to", "o"), ("too", "l"), ("a", "b"), ("1", "2"), ("e", "r"), ("i", "n"))
_PAD = "<pad>"
_DEEPSEEK_MARKS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)


def save_chat_tokenizer(path: Path, how: ToolFormat = ToolFormat.HERMES) -> dict[str, int]:
    """Write the tokenizer of `how` into the directory `path`; token → id.

    Every ASCII character is a token, and so are some pairs, so that one text has several spellings: ids that
    were sampled are not always those that the text would be encoded as.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    words = [*string.printable, *("".join(pair) for pair in _MERGES)]
    model = BPE({_PAD: 0, **{word: number for number, word in enumerate(words, 1)}}, list(_MERGES))
    raw = Tokenizer(model)
    raw.pre_tokenizer = Split(Regex(r"\w+|\W"), behavior="isolated")
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens([_PAD, END[how], *_SPECIAL[how]])
    if how is not ToolFormat.LLAMA:
        marks = _DEEPSEEK_MARKS if how is ToolFormat.DEEPSEEK else ("<tool_call>", "</tool_call>")
        raw.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END[how],
        pad_token=_PAD,
        bos_token=_SPECIAL[how][0],
        chat_template=TEMPLATES[how],
        clean_up_tokenization_spaces=False,
    )
    made.save_pretrained(path)
    vocabulary: dict[str, int] = made.get_vocab()
    return vocabulary
