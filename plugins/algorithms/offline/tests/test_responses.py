"""Given responses to token ids: what is trained on, to the token, under templates of several kinds."""

from collections.abc import Mapping
from typing import Any

import pytest

from rlcore import DataError, Messages, ModelError, Prompt, PromptTokenizer
from rlcore_offline.responses import ResponseEncoder

END = {"turns": "$\n", "endless": "\n", "next": ""}
"""What each style writes behind the assistant's message."""
USER = {"role": "user", "content": "12"}
AGAIN = {"role": "user", "content": "56"}
SAID: Messages = ({"role": "assistant", "content": "34", "train": True},)
OTHER = {"role": "assistant", "content": "78", "train": True}


class Characters:
    """One token a character: its code point. `$` is special, and `style` the chat template.

    `turns`: `u12\\na34$\\n`. `rewrites`: likewise, but the last message of the assistant begins with `!`.
    `endless`: no special token. `next`: the next role's token ends a turn. `odd`: the assistant's turn begins
    otherwise than the template asks for it.
    """

    def __init__(self, style: str = "turns", eos: str | None = "$") -> None:
        self._style = style
        self.eos_token = eos

    @property
    def eos_token_id(self) -> int | None:
        return ord(self.eos_token) if self.eos_token else None

    def __len__(self) -> int:
        return 256

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        special = "$&" if skip_special_tokens else ""
        return "".join(chr(token) for token in token_ids if chr(token) not in special)

    def apply_chat_template(
        self,
        conversation: list[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **variables: Any,
    ) -> Any:
        assert not any("train" in message for message in conversation), "the template sees no key of ours"
        text = "".join(
            self._turn(message, last=place == len(conversation) - 1)
            for place, message in enumerate(conversation)
        )
        text += "a" if add_generation_prompt else ""
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _turn(self, message: Mapping[str, Any], *, last: bool) -> str:
        if message["role"] != "assistant":
            return f"{'&' if self._style == 'next' else 'u'}{message['content']}\n"
        begin = "A" if self._style == "odd" else "a"
        thought = "!" if self._style == "rewrites" and last else ""
        return f"{begin}{thought}{message['content']}{END.get(self._style, END['turns'])}"


def encode(tokenizer: Characters, prompt: Any, response: Any, limit: int = 99) -> list[tuple[str, str, str]]:
    """(prompt, response, mask) of each sample."""
    encoder = ResponseEncoder(PromptTokenizer(tokenizer, 40), limit)
    found = encoder.encode(Prompt(prompt_id="row-3", text=prompt), response)
    return [
        (
            "".join(map(chr, given.prompt_ids)),
            "".join(map(chr, given.response_ids)),
            "".join(map(str, given.loss_mask)),
        )
        for given in found
    ]


def test_a_text_ends_with_the_stop_token() -> None:
    assert encode(Characters(), "12=", "34") == encode(Characters(), "12=", "34$") == [("12=", "34$", "111")]


@pytest.mark.parametrize("response", ["34", SAID], ids=["text", "messages"])
def test_a_chat_is_trained_from_the_generation_prompt_to_the_stop_token(response: str | Messages) -> None:
    assert encode(Characters(), (USER,), response) == [("u12\na", "34$", "111")]


def test_every_message_of_the_assistant_and_nothing_else() -> None:
    found = encode(Characters(), (USER,), (*SAID, AGAIN, OTHER))
    assert found == [("u12\na", "34$\nu56\na78$", "111" + "000000" + "111")]


def test_a_message_that_says_so_is_not_trained_on() -> None:
    unsaid = {**SAID[0], "train": False}
    assert encode(Characters(), (USER,), (unsaid, AGAIN, OTHER)) == [("u12\na34$\nu56\na", "78$", "111")]
    after = encode(Characters(), (USER,), (*SAID, AGAIN, {**OTHER, "train": False}))
    assert after == [("u12\na", "34$", "111")]


def test_a_template_that_rewrites_earlier_messages_gives_a_sample_for_each() -> None:
    """Each message then stands where it would have been generated."""
    found = encode(Characters("rewrites"), (USER,), (*SAID, AGAIN, OTHER))
    assert found == [("u12\na", "!34$", "1111"), ("u12\na34$\nu56\na", "!78$", "1111")]


def test_a_base_model_learns_the_end_of_the_template_and_not_its_own() -> None:
    assert encode(Characters(eos="#"), (USER,), SAID) == [("u12\na", "34$", "111")]


def test_where_the_next_role_ends_a_turn_its_token_is_learnt() -> None:
    found = encode(Characters("next"), (USER,), (*SAID, AGAIN, OTHER))
    assert found == [("&12\na", "34&56\na78&", "111" + "0000" + "111")]


def test_a_long_response_is_cut() -> None:
    encoder = ResponseEncoder(PromptTokenizer(Characters(), 40), 2)
    [given] = encoder.encode(Prompt(prompt_id="p", text="12="), "345")
    assert (given.response_ids, given.truncated) == ((ord("3"), ord("4")), True)
    [whole] = encoder.encode(Prompt(prompt_id="p", text="12="), "3")
    assert not whole.truncated


def test_a_pair_that_is_equal_once_cut_is_refused() -> None:
    encoder = ResponseEncoder(PromptTokenizer(Characters(), 40), 2)
    encoder.check([Prompt(prompt_id="p", text="1=", responses=("34", "35"))])
    with pytest.raises(DataError, match="'q': its two responses are equal within the 2 tokens"):
        encoder.check([Prompt(prompt_id="q", text="1=", responses=("345", "346"))])


def test_what_cannot_be_told_is_refused_by_name() -> None:
    late = ({**SAID[0], "train": False}, AGAIN, OTHER)
    with pytest.raises(DataError, match=r"'row-3' has 14 tokens; --max-prompt-tokens allows 5"):
        ResponseEncoder(PromptTokenizer(Characters(), 5), 9).encode(
            Prompt(prompt_id="row-3", text=(USER,)), late
        )
    with pytest.raises(
        DataError, match=r"'row-3': the chat template begins an assistant's message in another way"
    ):
        encode(Characters("odd"), (USER,), SAID)
    with pytest.raises(DataError, match=r"'row-3': the chat template ends message 2 with no special token"):
        encode(Characters("endless"), (USER,), SAID)
    with pytest.raises(ModelError, match="no eos_token"):
        encode(Characters(eos=None), "12=", "34")


def test_check_finds_what_encode_would() -> None:
    encoder = ResponseEncoder(PromptTokenizer(Characters("odd"), 40), 9)
    encoder.check([Prompt(prompt_id="p", text=(USER,))])
    with pytest.raises(DataError, match="'q'"):
        encoder.check([Prompt(prompt_id="q", text=(USER,), responses=("34",))])
