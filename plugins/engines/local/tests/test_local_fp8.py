"""A model in FP8: it computes with what the weights stand for, and holds what was published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rlcore import Fp8Weights, ModelError, WeightForms, checksum
from rlcore_local.requests import RequestError
from rlcore_local.testing import Local
from rlcore_local.weights import Weights
from rlcore_testing.checkpoints import publish_fp8, tensors_of
from rlcore_toolkit import FP8_DTYPE, checksums_of, wire_tensors
from rlcore_toolkit.publishers import delta

BLOCK = (8, 12)
NAME = "model.layers.0.mlp.down_proj.weight"


FP32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(params=[("qwen3", FP32), ("qwen3", BF16), ("qwen3_moe", FP32)], ids=str)
def twins(
    request: pytest.FixtureRequest, model_path: Callable[..., Path], tmp_path: Path
) -> tuple[Path, Path]:
    """The same model in FP8 and in full; the second kind is held otherwise in memory than on the disk.

    Scales are fp32 or bf16 on the disk, as in what is published.
    """
    family, scales = request.param
    small = Path(shutil.copytree(model_path(family), tmp_path / "small"))
    full = Path(shutil.copytree(small, tmp_path / "full"))
    save_file(publish_fp8(small, BLOCK, scales), full / "model.safetensors", metadata={"format": "pt"})
    return small, full


def _same_parameters(weights: Weights, full: Path, dtype: torch.dtype) -> bool:
    models: Any = AutoModelForCausalLM
    expected = models.from_pretrained(full, dtype=dtype).state_dict()
    held = weights.model.state_dict()
    return held.keys() == expected.keys() and all(torch.equal(held[one], expected[one]) for one in held)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_answers_as_transformers_does_with_what_the_weights_stand_for(
    twins: tuple[Path, Path], dtype: torch.dtype
) -> None:
    small, full = twins
    assert _same_parameters(Weights(small, dtype, None), full, dtype)
    answers = []
    for path in twins:
        engine = Local(path, dtype=dtype)
        answers.append(engine.run([engine.sequence("a", [5, 6, 7])])["a"])
    assert answers[0]["output_ids"] == answers[1]["output_ids"]
    logprobs = [one["meta_info"]["output_token_logprobs"] for one in answers]
    assert logprobs[0] == logprobs[1]


def test_each_way_brings_new_weights(twins: tuple[Path, Path], tmp_path: Path) -> None:
    """Bucket by bucket, as a whole, as changes: what is held afterwards is what was sent, to the last bit."""
    small, full = twins
    fp8 = Fp8Weights.of(small)
    assert fp8 is not None
    weights = Weights(small, torch.float32, None)
    before = {name: one.clone() for name, one in weights.tensors().items()}
    loaded = {name: one.float() if "scale" in name else one for name, one in tensors_of(small).items()}
    assert checksums_of(before) == checksums_of(loaded)
    changed = {name: one * 1.5 for name, one in tensors_of(full).items()}
    sent = wire_tensors(changed.items(), "fp32", WeightForms(fp8=fp8))
    assert sent.keys() == before.keys()
    assert sum(one.dtype == FP8_DTYPE for one in sent.values()) == len(fp8.names)
    delta.write(
        tmp_path / "changes",
        base=(0, before, checksums_of(before)),
        new=(1, sent, checksums_of(sent)),
    )
    (tmp_path / "new").mkdir()
    shutil.copy(small / "config.json", tmp_path / "new")
    save_file(sent, tmp_path / "new" / "model.safetensors", metadata={"format": "pt"})
    updates: list[Callable[[], None]] = [
        lambda: weights.update_from_tensors(sent),
        lambda: weights.update_from_disk(tmp_path / "new"),
        lambda: weights.update_from_delta(tmp_path / "changes", "0"),
    ]
    for update in updates:
        update()
        assert weights.checksums() == checksums_of(sent)
        stands_for = Weights(tmp_path / "new", torch.float32, None)
        assert all(
            torch.equal(one, stands_for.model.state_dict()[name])
            for name, one in weights.model.state_dict().items()
        )
        weights.update_from_disk(small)
        assert weights.checksums() == checksums_of(before)


def test_what_does_not_fit_changes_nothing(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(model_path("qwen3"), tmp_path / "small"))
    publish_fp8(path, BLOCK)
    weights = Weights(path, torch.float32, None)
    held = weights.tensors()[NAME]
    scales = f"{NAME}_scale_inv"
    sums = weights.checksums()
    for new, reason in (
        ({NAME: held.float()}, f"{NAME}: it is float32, but the model has float8_e4m3fn"),
        ({scales: torch.ones(1, 1)}, r"scale_inv: \(1, 1\) scales for blocks of \(8, 12\), expected"),
        ({"model.norm.weight": torch.ones(32).to(FP8_DTYPE)}, "but the model has a full weight"),
        ({"model.norm.weight_scale_inv": torch.ones(1, 1)}, "1 tensors are not of this model"),
    ):
        with pytest.raises(RequestError, match=reason):
            weights.update_from_tensors(new)
    tensors = weights.tensors()
    del tensors[scales]
    (tmp_path / "lacking").mkdir()
    shutil.copy(path / "config.json", tmp_path / "lacking")
    save_file(tensors, tmp_path / "lacking" / "model.safetensors")
    with pytest.raises(RequestError, match=f"1 tensors are missing, among them '{scales}'"):
        weights.update_from_disk(tmp_path / "lacking")
    with pytest.raises(ModelError, match=f"the FP8 weight '{NAME}' has no scales"):
        Weights(tmp_path / "lacking", torch.float32, None)
    assert weights.checksums() == sums
    assert checksum(weights.tensors()[NAME]) == sums[NAME]
    assert json.loads((path / "config.json").read_text())["quantization_config"]
