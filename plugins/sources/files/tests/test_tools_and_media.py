"""Tools reach the chat template; what is not text is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import Case, cases

from rlcore import DataError, Prompt, PromptTokenizer
from rlcore_files.config import FileConfig
from rlcore_files.source import FileSource
from rlcore_offline.responses import ResponseEncoder
from rlcore_testing.chat import save_chat_tokenizer

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add_numbers", "parameters": PARAMETERS}}
CHAT = [{"role": "user", "content": "1+1"}]
CALL = {"type": "function", "function": {"name": "add_numbers", "arguments": {"a": 1}}}
WHOLE = [
    *CHAT,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


def read(path: Path, rows: list[Any], **settings: Any) -> FileSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource(FileConfig(path=str(path), **settings))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    path = tmp_path_factory.mktemp("chat")
    save_chat_tokenizer(path)
    return PromptTokenizer.load(path, max_prompt_tokens=4000)


def text_of(encoder: PromptTokenizer, prompt: Prompt) -> str:
    return encoder.tokenizer.decode(encoder.encode(prompt), skip_special_tokens=False)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CHAT, "tools": [TOOL]},
        {"prompt": CHAT, "tools": json.dumps([TOOL])},
        {"prompt": CHAT, "metadata": {"tools": [TOOL]}},
    ],
)
def test_the_chat_template_shows_the_tools(tmp_path: Path, encoder: PromptTokenizer, row: Any) -> None:
    (prompt,) = read(tmp_path / "a.jsonl", [row]).prompts().train
    assert prompt.tools == (TOOL,)
    assert "add_numbers" in text_of(encoder, prompt)
    (plain,) = read(tmp_path / "a.jsonl", [{"prompt": CHAT}]).prompts().train
    assert "add_numbers" not in text_of(encoder, plain)


def test_tools_of_parquet_lose_the_keys_of_others(tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "other", "description": "x"}}
    rows = [{"prompt": CHAT, "tools": [TOOL]}, {"prompt": CHAT, "tools": [other]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = FileSource(FileConfig(path=str(tmp_path / "a.parquet"))).prompts().train
    assert [prompt.tools for prompt in found] == [(TOOL,), (other,)]


def test_each_turn_of_a_chat_with_tools_is_trained_on_and_no_result(
    tmp_path: Path, encoder: PromptTokenizer
) -> None:
    source = read(tmp_path / "a.jsonl", [{"messages": WHOLE, "tools": [TOOL]}])
    (prompt,) = source.with_responses().train
    learned = ""
    for given in ResponseEncoder(encoder, 4000).encode(prompt, prompt.responses[0]):
        kept = [token for token, live in zip(given.response_ids, given.loss_mask, strict=True) if live]
        learned += encoder.tokenizer.decode(kept, skip_special_tokens=False)
        assert "add_numbers" in encoder.tokenizer.decode(given.prompt_ids, skip_special_tokens=False)
    assert '{"name": "add_numbers", "arguments": {"a": 1}}' in learned
    assert "It is 2." in learned
    assert "tool_response" not in learned


def test_a_template_without_tools_is_refused(encoder: PromptTokenizer, tmp_path: Path) -> None:
    save_chat_tokenizer(tmp_path)
    bare = PromptTokenizer.load(tmp_path, max_prompt_tokens=100)
    bare.tokenizer.chat_template = "{{ messages[0].content }}"  # type: ignore[attr-defined]  # of transformers
    prompt = Prompt(prompt_id="row-1", text=tuple(CHAT), tools=(TOOL,))
    with pytest.raises(DataError, match="'row-1' has tools, but the chat template"):
        bare.check([prompt])
    encoder.check([prompt])


@pytest.mark.parametrize(
    "calls",
    [
        [{"type": "function", "function": {"name": "find", "arguments": {"q": "x", "limit": None}}}],
        [{"function": {"name": "find", "arguments": '{"q": "x", "limit": null}'}}],
        [{"name": "find", "arguments": {"q": "x", "limit": None}}],
        json.dumps([{"name": "find", "arguments": {"q": "x", "limit": None}}]),
    ],
    ids=["nested", "arguments as text", "flat", "text"],
)
def test_every_form_of_a_call_is_what_transformers_writes(
    tmp_path: Path, encoder: PromptTokenizer, calls: Any
) -> None:
    """Null arguments and defaults stay; only a parquet file fills objects up with them."""
    tool = {"type": "function", "function": {"name": "find", "parameters": {"q": {"default": None}}}}
    chat = [
        *CHAT,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "2"},
    ]
    (prompt,) = read(tmp_path / "a.jsonl", [{"prompt": chat, "tools": [tool]}]).prompts().train
    text = text_of(encoder, prompt)
    assert '{"name": "find", "arguments": {"q": "x", "limit": null}}' in text
    assert '{"default": null}' in text


def test_sharegpt_is_read_and_an_answer_goes_on(tmp_path: Path) -> None:
    chat = [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "It is"}]
    source = read(tmp_path / "a.jsonl", [{"conversations": chat}], messages_key="conversations")
    (learned,) = source.with_responses().train
    said = {"role": "assistant", "content": "It is"}
    assert (list(learned.text), learned.responses) == (CHAT, (({**said, "train": True},),))
    (prompt,) = read(tmp_path / "a.jsonl", [{"prompt": chat}], continue_final_message=True).prompts().train
    assert list(prompt.text) == [*CHAT, said]
    answered = [{"prompt": chat, "response": " 2"}]
    source = read(tmp_path / "a.jsonl", answered, continue_final_message=True)
    with pytest.raises(DataError, match="put its text at the beginning of the response"):
        source.with_responses()


@cases("tools and media: refused in one sentence")
def test_refused_in_one_sentence(tmp_path: Path, case: Case) -> None:
    row = case.given
    with case.refused(DataError, tmp_path):
        read(tmp_path / "a.jsonl", [row]).prompts()


def test_parts_of_text_are_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1"}]
    rows = [{"prompt": [{"role": "user", "content": parts}], "images": []}]
    (prompt,) = read(tmp_path / "a.jsonl", rows).prompts().train
    assert list(prompt.text) == CHAT


OWN_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<t>{% endif %}"


def test_the_chat_template_gets_its_arguments(tmp_path: Path, encoder: PromptTokenizer) -> None:
    encoder = PromptTokenizer(encoder.tokenizer, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder.tokenizer, "chat_template", OWN_TEMPLATE)
        for value, text in ((True, "1+1<t>"), (False, "1+1")):
            source = read(
                tmp_path / "a.jsonl", [{"prompt": CHAT}], chat_template_kwargs={"enable_thinking": value}
            )
            assert text_of(encoder, source.prompts().train[0]) == text
        (wrong,) = (
            read(tmp_path / "a.jsonl", [{"prompt": CHAT}], chat_template_kwargs={"thinking": 1})
            .prompts()
            .train
        )
        with pytest.raises(
            DataError, match="'thinking' for the chat template, but the tokenizer's has no such"
        ):
            encoder.encode(wrong)


def test_arguments_of_a_chat_template_need_a_chat(tmp_path: Path) -> None:
    source = read(tmp_path / "a.jsonl", [{"prompt": "1+1"}], chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(DataError, match=r"line 1: --source.chat-template-kwargs are for a chat template"):
        source.prompts()
