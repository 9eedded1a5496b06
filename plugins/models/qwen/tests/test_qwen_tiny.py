"""The tiny preset: reproducible, loadable, and with a tokenizer that loses nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore.weights.weights_check import check_weights
from rlcore_qwen.delta_tiny import tiny_next, tiny_qwen3_5
from rlcore_qwen.tiny import tiny
from rlcore_toolkit.presets import CHARACTERS, VOCABULARY


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = tiny(tmp_path / "a", 3), tiny(tmp_path / "b", 3), tiny(tmp_path / "c", 4)
    names = sorted(file.name for file in first.iterdir())
    assert names == sorted(file.name for file in again.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (again / name).read_bytes(), name
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("preset", "family"), [(tiny, "qwen3"), (tiny_next, "qwen3_next"), (tiny_qwen3_5, "qwen3_5_text")]
)
def test_transformers_loads_all_of_it(preset: Callable[[Path], Path], family: str, tmp_path: Path) -> None:
    loader: Any = AutoModelForCausalLM  # transformers types the pair that it returns as a model
    model, info = loader.from_pretrained(preset(tmp_path / "m"), output_loading_info=True)
    check_weights(tmp_path / "m")  # shapes, too
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.model_type == family
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == VOCABULARY.index("<eos>")
    with torch.no_grad():
        logits = model(torch.tensor([[3, 4, 5]])).logits
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert logits.shape == (1, 3, len(VOCABULARY))
    assert entropy.min() > 0.5 * math.log(len(VOCABULARY))


@pytest.mark.parametrize(
    "text", ["1234=4321", "copy 907 : 9,0,7", "sort 31 = 13", "reverse add 12+30=42", CHARACTERS]
)
def test_text_survives_the_tokenizer(tmp_path: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(tmp_path / "m"))
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids


def test_special_tokens_and_chat(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(tmp_path / "m"))
    assert len(tokenizer) == len(VOCABULARY) <= 32
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]
    assert tokenizer.decode([*tokenizer("12")["input_ids"], 1], skip_special_tokens=True) == "12"
    chat = [{"role": "user", "content": "copy 12="}, {"role": "assistant", "content": "12"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "copy 12=12<eos>"
