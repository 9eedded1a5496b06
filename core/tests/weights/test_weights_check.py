"""A model directory whose weights are not those of its config.json: one sentence, from headers alone."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from rlcore.api.errors import ModelError
from rlcore.weights.weights_check import INDEX, check_weights
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_testing.nested import NESTED, joined

SHAPE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "untied": LlamaConfig(**SHAPE, attention_bias=True),
    "tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "experts": Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in several files for each of `CONFIGS`."""
    root = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        make_checkpoint(root / name, config)
    return root


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_saves_is_right(models: Path, name: str) -> None:
    check_weights(models / name)


def test_a_decoder_in_a_larger_model_and_joined_experts_are_right(models: Path, tmp_path: Path) -> None:
    weights = joined(tensors_of(models / "experts"))
    nested = {re.sub(r"^model\.", next(iter(NESTED)), name): tensor for name, tensor in weights.items()}
    shutil.copy(models / "experts" / "config.json", tmp_path)
    save_file(nested, tmp_path / "model.safetensors")
    check_weights(tmp_path)
    (name,) = (name for name in nested if name.endswith("0.mlp.experts.down_proj"))
    save_file({**nested, name: torch.zeros(4, 48, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{name}.* \(4, 48, 8\), but .* \(4, 48, 16\)"):
        check_weights(tmp_path)


def _second(model: Path) -> Path:
    return sorted(model.glob("*.safetensors"))[1]


def _without_a_file(model: Path) -> None:
    _second(model).unlink()


def _cut(model: Path) -> None:
    file = _second(model)
    file.write_bytes(file.read_bytes()[:-9])


def _without_files(model: Path) -> None:
    for file in model.glob("*.safetensors"):
        file.unlink()


def _broken_index(model: Path) -> None:
    (model / INDEX).write_text("[1]")


def _unnamed_file(model: Path) -> None:
    index = json.loads((model / INDEX).read_text())
    kept = {name: file for name, file in index["weight_map"].items() if file != _second(model).name}
    (model / INDEX).write_text(json.dumps({**index, "weight_map": kept}))


def _set(model: Path, **changes: Any) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _head(model: Path, name: str) -> None:
    """`name` in the place of the output head."""
    weights = {key: tensor for file in model.glob("*.safetensors") for key, tensor in load_file(file).items()}
    _without_files(model)
    (model / INDEX).unlink()
    del weights["lm_head.weight"]
    save_file({**weights, name: torch.zeros(1, 48)}, model / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_a_file, ("model-00002-of-", "is missing", INDEX)),
        (_without_files, ("holds no weights",)),
        (_cut, ("model-00002-of-", "cannot be read as safetensors")),
        (_broken_index, (INDEX, "no index")),
        (_unnamed_file, ("lacks the weight",)),
        (partial(_set, vocab_size=98), ("embed_tokens", "(99, 48)", "(98, 48)")),
        (partial(_set, intermediate_size=84), (".mlp.", "(80, 48)", "(84, 48)")),
        (partial(_set, num_hidden_layers=3), ("lacks the weight 'model.layers.2.",)),
        (partial(_set, dtype="x"), ("config.json cannot be read: AttributeError: ", "'x'")),
        (partial(_set, pad_token_id=99), ("config.json cannot be read: AssertionError: Padding_idx",)),
        (partial(_set, mlp_bias=True), ("lacks the weight 'model.layers.0.mlp.", "(80,)")),
        (partial(_head, name="score.weight"), ("lacks the weight 'lm_head.weight' (99, 48)",)),
    ],
    ids=[
        "a-file",
        "files",
        "cut",
        "index",
        "unnamed",
        "vocabulary",
        "width",
        "layers",
        "dtype",
        "padding",
        "bias",
        "head",
    ],
)
def test_what_is_wrong_is_said(
    models: Path, tmp_path: Path, spoil: Callable[[Path], None], said: tuple[str, ...]
) -> None:
    copy = shutil.copytree(models / "untied", tmp_path / "copy")
    spoil(copy)
    with pytest.raises(ModelError) as caught:
        check_weights(copy)
    message = str(caught.value)
    assert str(copy) in message
    for part in said:
        assert part in message, message
    assert message.count("\n") == 0


def test_a_critic_may_have_a_scalar_head(models: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(models / "untied", tmp_path / "copy")
    _head(copy, "score.weight")
    check_weights(copy, output_head=False)


def test_shapes_are_looked_at_only_where_asked(models: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(models / "untied", tmp_path / "copy")
    _set(copy, vocab_size=98)
    check_weights(copy, shapes=False)
    _cut(copy)
    with pytest.raises(ModelError, match="cannot be read"):
        check_weights(copy, shapes=False)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_tied_matrix_in_the_files_must_be_its_source(models: Path, tmp_path: Path, scale: float) -> None:
    """transformers keeps two different matrices as they are, where a trainer ties them."""
    weights = tensors_of(models / "tied")
    shutil.copy(models / "tied" / "config.json", tmp_path)
    head = weights["model.embed_tokens.weight"] * scale
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors")
    refused = nullcontext() if scale == 1 else pytest.raises(ModelError, match=r"ties .lm_head\.weight. to")
    with refused:
        check_weights(tmp_path)
