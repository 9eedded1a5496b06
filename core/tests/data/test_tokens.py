"""Prompts to ids, with a real tokenizer of single characters."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rlcore import DataError, ModelError, Prompt, PromptTokenizer, load_tokenizer, text_ids
from rlcore.data import prompt_tokenizer
from rlcore_toolkit import token_spans

CHARACTERS = "0123456789=+ <>uars:"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = {"<bos>": 0, "<eos>": 1, **{c: i + 2 for i, c in enumerate(CHARACTERS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    path = tmp_path_factory.mktemp("tokenizer")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    fast.save_pretrained(path)
    return path


def prompt(text: Any) -> Prompt:
    return Prompt(prompt_id="row-7", text=text)


def test_text_gets_no_special_tokens(directory: Path) -> None:
    encoder = PromptTokenizer.load(directory, max_prompt_tokens=5)
    assert encoder.encode(prompt("1203=")) == (3, 4, 2, 5, 12)
    assert len(encoder.tokenizer) == len(CHARACTERS) + 2


def test_a_text_begins_as_the_tokenizer_begins_texts(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Llama's and Gemma's were pretrained so. A chat begins as its template says."""
    tokenizer: Any = load_tokenizer(directory)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 0), ("<eos>", 1)]
    )
    encoder = PromptTokenizer(tokenizer, max_prompt_tokens=5)
    assert encoder.encode(prompt("12=")) == encoder.encode(prompt("<bos>12=")) == (0, 3, 4, 12)
    with pytest.raises(DataError, match="has 6 tokens"):
        encoder.check([prompt("1203=")])
    chats = [prompt(({"role": "user", "content": digit},)) for digit in "12"]
    for template, first, warnings in ((f"<bos>{TEMPLATE}", "<bos>", 0), (TEMPLATE, "u", 1)):
        tokenizer.chat_template = template
        encoder = PromptTokenizer(tokenizer, 100)
        assert {encoder.encode(chat)[0] for chat in chats} == {tokenizer.convert_tokens_to_ids(first)}
        assert len(caplog.records) == warnings


def test_a_chat_goes_through_the_template(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    chat = ({"role": "user", "content": "12"},)
    with pytest.raises(DataError, match="'row-7': The tokenizer cannot format the chat: Cannot use chat"):
        PromptTokenizer(tokenizer, 100).encode(prompt(chat))
    tokenizer.chat_template = TEMPLATE  # type: ignore[attr-defined]  # a real tokenizer has it
    ids = PromptTokenizer(tokenizer, 100).encode(prompt(chat))
    assert tokenizer.decode(ids, skip_special_tokens=True) == "u:12 a:"


@pytest.mark.parametrize("content", ["12", [{"type": "text", "text": "12"}]])
def test_a_template_that_leaves_out_the_question_is_refused(directory: Path, content: Any) -> None:
    """As SmolVLM's does, which takes content in parts."""
    tokenizer: Any = load_tokenizer(directory)
    tokenizer.chat_template = (
        "{% for m in messages %}u:{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(DataError, match="'row-7': the chat template leaves out its last message"):
        PromptTokenizer(tokenizer, 100).encode(prompt(({"role": "user", "content": content},)))


def test_too_many_tokens(directory: Path) -> None:
    encoder = PromptTokenizer.load(directory, max_prompt_tokens=4)
    message = "The prompt 'row-7' has 5 tokens; --max-prompt-tokens allows 4."
    with pytest.raises(DataError, match=message):
        encoder.encode(prompt("1203="))
    encoder.check([prompt("123=")])
    with pytest.raises(DataError, match=message):
        encoder.check([prompt("123="), prompt("1203=")])


def test_directories_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model directory"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelError, match=r"the tokenizer cannot be loaded \(.*\)\.$"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_directory_runs_no_code(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: ...\n")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (tmp_path / "config.json").write_text('{"model_type": "evil"}')
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path)
    assert not marker.exists()


WORDS = ["the cat sat = 4", "größer 猫 sat 🙂🙂 the", "a  b\n\nthe cat"]


def trained(kind: str) -> PreTrainedTokenizerFast:
    """A small BPE as real models have it: of bytes, as Qwen's, or with a mark for a space, as Llama's."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "spaces", unk_token="<unk>"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        alphabet = []
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = ["<unk>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256) if kind == "spaces")]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


TRAINED = {kind: trained(kind) for kind in ("bytes", "spaces")}


@pytest.mark.parametrize("kind", TRAINED)
@given(pieces=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4), st.just("<eos>")), max_size=4))
def test_spans_are_the_places_of_tokens_in_the_text(kind: str, pieces: list[str]) -> None:
    """They follow each other without a gap, and what is decoded up to a token ends with its place."""
    tokenizer: Any = TRAINED[kind]
    ids = tokenizer.encode("".join(pieces), add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    spans = token_spans(tokenizer, ids)
    assert len(spans) == len(ids)
    places = [0, *dict.fromkeys(end for _, end in spans)]
    assert places[-1] == len(text)
    for place, (begin, end) in enumerate(spans):
        assert begin <= end
        before = tokenizer.decode(ids[: place + 1], skip_special_tokens=True)
        assert text[:end].startswith(before.rstrip("\ufffd")), (before, text[:end])
        assert begin == 0 or begin in {end for _, end in spans[:place]}
    assert "".join(text[a:b] for a, b in dict.fromkeys(spans)) == text


def test_bytes_that_are_no_character_keep_to_themselves() -> None:
    """A policy may sample them in a row: those after them have their own places."""
    tokenizer: Any = TRAINED["bytes"]
    (lone,) = {ids[0] for ids in [tokenizer.encode("é", add_special_tokens=False)]}
    sat = tokenizer.encode("sat", add_special_tokens=False)
    spans = token_spans(tokenizer, [lone] * 400 + sat)
    text = tokenizer.decode([lone] * 400 + sat, skip_special_tokens=True)
    assert text[slice(*spans[-1])] == text[spans[-1][0] :]
    assert text[spans[400][0] :].endswith("sat")
    assert spans[400][0] >= 390


def test_spans_by_hand() -> None:
    """Two tokens that make one character have its place; a special one has no text."""
    tokenizer: Any = TRAINED["bytes"]
    ids = [*tokenizer.encode("sat", add_special_tokens=False), tokenizer.eos_token_id]
    wide = tokenizer.encode("é=", add_special_tokens=False)
    assert len(wide) == 3, "é is two bytes"
    spans = token_spans(tokenizer, [*ids, *wide])
    assert spans[len(ids) - 1] == (3, 3)
    assert spans[len(ids) :] == [(3, 4), (3, 4), (4, 5)]


@pytest.mark.parametrize("kind", TRAINED)
@given(text=st.one_of(st.text(max_size=30), st.sampled_from([*WORDS, "<eos>the<unk>", ""])))
def test_ids_are_those_of_the_tokenizer(kind: str, text: str) -> None:
    tokenizer: Any = TRAINED[kind]
    assert list(text_ids(tokenizer, text)) == tokenizer.encode(text, add_special_tokens=False)


def test_a_tokenizer_that_would_cut_or_fill_does_not(tmp_path: Path) -> None:
    """tokenizer.json may hold what the model's authors trained with."""
    TRAINED["bytes"].save_pretrained(tmp_path)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    raw.enable_truncation(2)
    raw.enable_padding(length=50)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer: Any = load_tokenizer(tmp_path)
    ids = TRAINED["bytes"].encode("xyz =", add_special_tokens=False)
    assert len(ids) > 2
    assert list(text_ids(tokenizer, "xyz =")) == ids


def test_a_template_that_never_ends_is_one_sentence(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_tokenizer, "TEMPLATE_S", 0.1)
    encoder = PromptTokenizer.load(directory, max_prompt_tokens=5)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    encoder.tokenizer.chat_template = loops  # type: ignore[attr-defined]  # of transformers
    with pytest.raises(DataError, match=r"'row-7': .* took longer than 0.1 s"):
        encoder.check([prompt(({"role": "user", "content": "1"},))])
