"""The token that ends a turn, by the chat templates of the families, as TRL ships them."""

from collections.abc import Sequence
from typing import Any

import pytest
from templates import MINIMAX, MISTRAL, shipped, tokenizer

from rlcore import Sampling, TurnEnd, turn_ends
from rlcore.data.chat import answer_header
from rlcore.rollout.context import EngineContext, Engines
from rlcore_toolkit import render_suffix

ENDS = {
    "cohere2": ("<|END_OF_TURN_TOKEN|>",),
    "deepseek_r1_distill": ("<｜end▁of▁sentence｜>",),
    "deepseekv3": ("<｜end▁of▁sentence｜>",),
    "gemma": ("<end_of_turn>",),
    "gemma3": ("<end_of_turn>",),
    "gemma4": ("<turn|>",),
    "gptoss": ("<|return|>", "<|call|>"),
    "lfm2": ("<|im_end|>",),
    "llama3": ("<|eot_id|>",),
    "llama3_1": ("<|eot_id|>",),
    "phi3": ("<|end|>",),
    "qwen2_5": ("<|im_end|>",),
    "qwen3": ("<|im_end|>",),
    "qwen3_5_think": ("<|im_end|>",),
}
PLAIN = "{% for m in messages %}### {{ m.role }}: {{ m.content }}\n{% endfor %}"


def texts(ends: tuple[TurnEnd, ...], *, written: bool) -> tuple[str, ...]:
    return tuple(end.text for end in ends if end.written is written)


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_the_templates_and_not_the_tokenizers(name: str) -> None:
    ends = turn_ends(tokenizer(shipped(name)))
    assert (texts(ends, written=True), texts(ends, written=False)) == (ENDS[name], ())


@pytest.mark.parametrize(
    ("template", "end"), [(MISTRAL, ("<eos>",)), (MINIMAX, ("[e~[",)), (PLAIN, ())], ids=repr
)
def test_the_end_of_other_templates(template: str, end: tuple[str, ...]) -> None:
    assert texts(turn_ends(tokenizer(template, "[e~[", "]~b]")), written=True) == end


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("gptoss", "<|channel|>final<|message|>"),
        ("qwen3", ""),
        ("deepseekv3", ""),
    ],
)
def test_the_header_of_an_answer_has_special_tokens(name: str, header: str) -> None:
    by = tokenizer(shipped(name))
    assert by.decode(answer_header(by), skip_special_tokens=False) == header


async def test_engines_stop_at_the_templates_end_beside_the_users() -> None:
    """A base model's own end is another one, and its engine knows no more."""
    by = tokenizer(shipped("qwen2_5"))
    seen: list[tuple[int, ...]] = []

    async def made(draw: int, contexts: Sequence[EngineContext]) -> None:
        seen.append(contexts[0].sampling.stop_token_ids)

    nobody: Any = None
    sampling = Sampling(max_tokens=1, stop_token_ids=(5,))
    await Engines([nobody], by, 1).for_each([0], made, [sampling], nobody, in_step=False)
    assert seen == [(5, by.convert_tokens_to_ids("<|im_end|>"))]


def test_the_next_role_ends_a_turn_of_glm() -> None:
    ends = turn_ends(tokenizer(shipped("glm4moe")))
    assert texts(ends, written=False) == ("<|user|>", "<|observation|>")
    assert not texts(ends, written=True)


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("gptoss", "3<|return|>", "<|start|>user<|message|>and?<|end|><|start|>assistant"),
        ("phi3", "3<|end|>", "\n<|user|>\nand?<|end|>\n<|assistant|>\n"),
        ("qwen3", "3<eos>", "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_a_chat_goes_on_with_one_end(name: str, said: str, expected: str) -> None:
    """Harmony writes another end within a chat than the model says; a foreign one stays."""
    by = tokenizer(shipped(name))
    chat = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]
    sampled = by.encode(said, add_special_tokens=False)
    suffix = render_suffix(by, chat, [{"role": "user", "content": "and?"}], sampled=sampled)
    assert by.decode(suffix, skip_special_tokens=False) == expected
