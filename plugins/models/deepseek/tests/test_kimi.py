"""Kimi-K2 by its own name: its config and its tokenizer without the code that comes with them."""

import base64
import json
import os
import random
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from rlcore import ModelError, load_tokenizer
from rlcore_deepseek.adopt import kimi
from rlcore_deepseek.tiktoken import PATTERN, ranks_of, tokenizer_json

SPOKEN = (
    "Rollouts are made, scored, and learned from; it's the model's turn.\n\n",
    "aaaaa abab 12345 ",
    "\t \r\n",
)
WRITTEN = (
    "月之暗面发布了千亿参数模型。",
    "汉字漢字abc",
    "Привет, мир ",
    "こんにちは世界カタカナ",
    "Ünïcödé ǅ naïve ",
)
ALPHABET = "ab a'sSdD \n\t.1中國ÅéΩßǅㄅ々ー가\u0301\U0001f600\U00020000"


def by_ranks(text: str, ranks: Mapping[bytes, int]) -> list[int]:
    """tiktoken's rule: of all pairs side by side, the first one of the lowest rank is joined."""
    found = []
    for piece in regex.findall(PATTERN, text, flags=regex.V1):
        parts = [bytes([byte]) for byte in piece.encode()]
        if piece.encode() in ranks:
            parts = [piece.encode()]
        while pairs := [
            (ranks[first + second], place)
            for place, (first, second) in enumerate(pairwise(parts))
            if first + second in ranks
        ]:
            place = min(pairs)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found += [ranks[part] for part in parts]
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config and tokenizer as Kimi-K2 has them, of 600 tokens, beside code that must not run."""
    path = tmp_path_factory.mktemp("kimi")
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    trained.train_from_iterator([f"{text} " * 3 for text in (*SPOKEN, *WRITTEN)], trainer)
    words = {trained.decode([number]).encode() for number in range(trained.get_vocab_size())}
    singles = [bytes([byte]) for byte in range(256)]
    tokens = [*singles, *sorted(word for word in words - {*singles} if "\ufffd" not in word.decode())]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (path / "tiktoken.model").write_text("".join(lines))
    count = len(tokens)
    added = {str(count): {"content": "[BOS]"}, str(count + 2): {"content": "<|im_end|>"}}
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": added,
        "eos_token": "<|im_end|>",
    }
    config["auto_map"] = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "tokenization_kimi.py").write_text("raise SystemExit")
    config = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_its_tokens_are_those_of_tiktoken(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = Path(kimi(str(published), None))
    tokenizer: Any = load_tokenizer(path)
    ranks = ranks_of(published / "tiktoken.model")
    draw = random.Random(0)
    texts = [*SPOKEN, *WRITTEN, *("".join(draw.choices(ALPHABET, k=40)) for _ in range(500))]
    for text in texts:
        found = tokenizer.encode(text, add_special_tokens=False)
        assert found == by_ranks(text, ranks), text
        assert tokenizer.decode(found) == text
    marked = tokenizer.encode("a<|im_end|>[BOS]", add_special_tokens=False)
    assert marked == [ranks[b"a"], len(ranks) + 2, len(ranks)]
    assert tokenizer.eos_token_id == len(ranks) + 2
    assert tokenizer.convert_ids_to_tokens(len(ranks) + 1) == f"<|reserved_token_{len(ranks) + 1}|>"
    assert json.loads((path / "config.json").read_text())["model_type"] == "deepseek_v3"
    assert not list(path.glob("*.py"))
    assert kimi(str(published), None) == str(path)
    with pytest.raises(ModelError, match="expected a token in base64"):
        tokenizer_json(published / "config.json", {})


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer_config.json"])
def test_its_tokenizer_follows_the_source(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = Path(shutil.copytree(published, tmp_path / "source"))
    made = Path(kimi(str(source), None)) / "tokenizer.json"
    old, time = made.read_text(), made.stat().st_mtime_ns
    kimi(str(source), None)
    assert made.stat().st_mtime_ns == time
    if name == "tiktoken.model":
        *lines, _ = (source / name).read_text().splitlines(keepends=True)
        (source / name).write_text("".join(lines))
    else:
        (source / name).write_text((source / name).read_text().replace("[BOS]", "[START]"))
    kimi(str(source), None)
    assert made.read_text() == tokenizer_json(
        source / "tiktoken.model",
        json.loads((source / "tokenizer_config.json").read_text())["added_tokens_decoder"],
    )
    assert made.read_text() != old


def test_a_full_disk_is_one_sentence(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Path(kimi(str(published), None)) / "tokenizer.json"
    made.unlink()
    made.with_name(f"{made.name}.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(ModelError, match=r"cannot be written \(No space left on device\)"):
        kimi(str(published), None)
