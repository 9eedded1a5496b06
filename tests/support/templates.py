"""Chat templates of public families, and tokenizers of bytes that have them."""

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

GEMMA_TOOLS = ("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
"""Special tokens of Gemma 4 beside those that `SPECIAL` finds in its template."""

SPECIAL = re.compile(r"<[|｜][^<>\s'\"{}]*[|｜]>|<\|?turn\|?>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>")
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{{ m.tool_calls[0].function | tojson }}]{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
MINIMAX = (
    "{% for m in messages %}]~b]{{ 'ai' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content }}[e~[\n{% endfor %}"
    "{% if add_generation_prompt %}]~b]ai\n{% endif %}"
)


def tokenizer(template: str, *special: str) -> Any:
    """One of bytes. It has the special tokens that the template names, and an eos that none names."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={byte: place for place, byte in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    found = sorted({*SPECIAL.findall(template), *special})
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<eos>",
        bos_token="<bos>",
        additional_special_tokens=found,
        chat_template=template,
    )


def shipped(name: str) -> str:
    """A template that TRL ships."""
    trl = pytest.importorskip("trl")
    return Path(trl.__file__).with_name("chat_templates").joinpath(f"{name}.jinja").read_text()
