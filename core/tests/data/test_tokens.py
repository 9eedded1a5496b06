"""Prompts to ids, with a real tokenizer of single characters."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore.api.errors import DataError, ModelError
from rlcore.api.tokens import PromptEncoder, load_tokenizer
from rlcore.api.types import Prompt

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
    encoder = PromptEncoder.load(directory, max_prompt_tokens=5)
    assert encoder.encode(prompt("1203=")) == (3, 4, 2, 5, 12)
    assert len(encoder.tokenizer) == len(CHARACTERS) + 2


def test_a_chat_goes_through_the_template(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    chat = ({"role": "user", "content": "12"},)
    with pytest.raises(
        DataError, match="'row-7' is a chat that the tokenizer cannot format: Cannot use chat"
    ):
        PromptEncoder(tokenizer, 100).encode(prompt(chat))
    tokenizer.chat_template = TEMPLATE  # type: ignore[attr-defined]  # a real tokenizer has it
    ids = PromptEncoder(tokenizer, 100).encode(prompt(chat))
    assert tokenizer.decode(ids, skip_special_tokens=True) == "u:12 a:"


def test_too_many_tokens(directory: Path) -> None:
    encoder = PromptEncoder.load(directory, max_prompt_tokens=4)
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
