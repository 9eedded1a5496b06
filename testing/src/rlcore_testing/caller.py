"""A Qwen3 whose weights are set by hand: in every answer it calls the tool `look`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcore_testing.chat import END, save_chat_tokenizer
from rlcore_testing.tiny import make_qwen3
from rlcore_toolkit import ToolFormat

HERMES_END = END[ToolFormat.HERMES]
THOUGHTS = [f"thought{number} " for number in range(40)]
"""What an answer begins with, in this order."""
BODIES = [f'\n{{"name": "look", "arguments": {{"where": "{digit}"}}}}\n' for digit in range(10)]
"""The bodies of its calls, each as likely as the others."""
_SURE = 3.0
"""Enough for the logit of the next token to stand out."""


def make_caller(path: Path, *, thoughts: Sequence[str] = THOUGHTS, context: int = 1024) -> Path:
    """The model and its tokenizer, to which each of `THOUGHTS` and `BODIES` is one token.

    What comes next follows from the last token alone: attention and MLP add nothing, and the head knows the
    embedding of what stands before each token.
    """
    import torch
    from tokenizers import AddedToken
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_chat_tokenizer(path)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*THOUGHTS, *BODIES)])
    tokenizer.save_pretrained(path)
    id_of = tokenizer.convert_tokens_to_ids
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 256, "max_position_embeddings": context}
    make_qwen3(path, **sizes, eos_token_id=id_of(HERMES_END))
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        head.zero_()
        call = [["<tool_call>"], BODIES, ["</tool_call>"]]
        order = [["\n"], *([thought] for thought in thoughts), *call, [HERMES_END]]
        for before, after in itertools.pairwise(order):
            for first, then in itertools.product(before, after):
                known = embedding[id_of(first)]
                head[id_of(then)] += _SURE * known / known.norm()
    model.save_pretrained(path)
    return path
