"""`rlcore convert` of weights published in FP8: made full on the way in, or refused in one sentence."""

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from program import Program
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from rlcore import Fp8Weights
from rlcore_testing.checkpoints import make_checkpoint, publish_fp8, tensors_of

# megatron warns of itself, and it runs in this process here
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

BLOCK = (8, 16)
LATENT = {
    **{"vocab_size": 64, "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 20, "kv_lora_rank": 16},
    **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 24},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    **{"first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "max_position_embeddings": 64},
}
SCALES = "model.layers.0.mlp.down_proj.weight_scale_inv"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A DeepSeek-V3 in FP8, and what its weights stand for. No size is a multiple of a block's."""
    path = tmp_path_factory.mktemp("published") / "model"
    make_checkpoint(path, AutoConfig.for_model("deepseek_v3", **LATENT))
    return path, publish_fp8(path, BLOCK)


def test_the_weights_are_full_in_the_checkpoint_and_behind_it(
    published: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Program,
) -> None:
    """On a terminal a bar shows how far it is."""
    path, expected = published
    middle, out = tmp_path / "middle", tmp_path / "out"
    program("convert", str(path), str(middle))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    program("convert", str(middle), str(out))
    assert "Writing" in program.err
    torch.testing.assert_close(tensors_of(out), expected, rtol=0, atol=0)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


def test_a_full_directory_is_written_as_one_in_fp8_is_published(tmp_path: Path, program: Program) -> None:
    full, small, twin = tmp_path / "full", tmp_path / "small", tmp_path / "twin"
    make_checkpoint(full, AutoConfig.for_model("deepseek_v3", **LATENT))
    shutil.copytree(full, twin)
    publish_fp8(twin, (8, 8))
    assert len(list(full.glob("*.safetensors"))) > 1
    program("convert", str(full), str(small), "--fp8", "8")
    written, wanted = tensors_of(small), tensors_of(twin)
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], wanted[name]) for name in wanted)
    assert Fp8Weights.of(small) == Fp8Weights.of(twin)
    index = json.loads((small / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == written.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in written.values())
    checkpoint = tmp_path / "run" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "run.toml").touch()
    for source, reason in ((small, "are quantized already"), (checkpoint, "of a checkpoint first")):
        assert reason in program.refused("convert", str(source), str(tmp_path / "out"), "--fp8", "8")


def test_what_joins_the_inputs_of_multi_token_prediction_stays_full(tmp_path: Path, program: Program) -> None:
    """With nothing else to quantize, nothing is written."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "deepseek_v3"}')
    joins = {"model.layers.2.eh_proj.weight": torch.ones(8, 8)}
    save_file(joins, source / "model.safetensors")
    said = program.refused("convert", str(source), str(tmp_path / "out"), "--fp8", "8")
    assert "none of its tensors is a projection" in said
    assert not (tmp_path / "out").exists()
    save_file({**joins, "model.layers.2.up_proj.weight": torch.ones(8, 8)}, source / "model.safetensors")
    program("convert", str(source), str(tmp_path / "out"), "--fp8", "8")
    assert "model.layers.2.eh_proj.weight_scale_inv" not in tensors_of(tmp_path / "out")


def _quantized_by(model: Path, **how: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "quantization_config": how}))


def _without_scales(model: Path) -> None:
    _rewrite(model, lambda weights: weights.pop(SCALES))


def _with_one_scale(model: Path) -> None:
    _rewrite(model, lambda weights: weights.update({SCALES: torch.ones(1, 1)}))


def _rewrite(model: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (partial(_quantized_by, quant_method="fp8"), "quantized by 'fp8'; give the unquantized model"),
        (partial(_quantized_by, quant_method="gptq", bits=4), "quantized by 'gptq'; give the unquantized"),
        (_without_scales, f"lacks {SCALES!r}, the scales of the FP8 weight"),
        (_with_one_scale, f"{SCALES}: found (1, 1) scales for blocks of {BLOCK}, expected (5, 3)."),
    ],
    ids=["whole-tensors", "gptq", "no-scales", "misshapen-scales"],
)
def test_what_cannot_be_made_full_is_refused(
    published: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    program: Program,
    harm: Callable[[Path], None],
    reason: str,
) -> None:
    copy = shutil.copytree(published[0], tmp_path / "copy")
    harm(copy)
    line = program.refused("convert", str(copy), str(tmp_path / "out"))
    assert reason in line
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
