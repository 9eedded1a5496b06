"""FP8 blocks against the formula, block by block."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rlcore.engines.publish_file import Fp8Weights, WeightForms
from rlcore.weights.fp8_config import fp8_block
from rlcore_toolkit import FP8_DTYPE, dequantize_fp8, on_wire, quantize_fp8, wire_bytes


def _formula(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    (rows, columns), (height, width) = weight.shape, block
    small = torch.zeros(rows, columns, dtype=FP8_DTYPE)
    scales = torch.zeros(-(-rows // height), -(-columns // width))
    for i, j in itertools.product(range(scales.shape[0]), range(scales.shape[1])):
        part = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
        scales[i, j] = weight[part].float().abs().max() / 448
        if scales[i, j] > 0:
            small[part] = (weight[part].float() / scales[i, j]).to(FP8_DTYPE)
    return small, scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256, 384), (300, 130), (1, 1), (127, 129), (64, 7)])
def test_values_and_scales_are_those_of_the_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    small, scales = quantize_fp8(weight.t().contiguous().t(), (128, 128))
    expected, expected_scales = _formula(weight, (128, 128))
    assert torch.equal(scales, expected_scales)
    assert torch.equal(small.view(torch.uint8), expected.view(torch.uint8))
    back = dequantize_fp8(small, scales, (128, 128))
    # e4m3 has 3 bits behind the point; below 2^-6 steps of 2^-9
    bound = weight.float().abs() / 16 + scales.max() * 2**-10
    assert bool(((back - weight.float()).abs() <= bound).all())
    again, _ = quantize_fp8(back, (128, 128))
    assert torch.equal(again.view(torch.uint8), small.view(torch.uint8)), "what is in FP8 stays as it is"


def test_scales_that_are_powers_of_two() -> None:
    """The least that hold their block: it uses e4m3's upper half, up to 448 itself."""
    weight = torch.randn(96, 80, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 80)
    weight[0, 0], weight[8:16, :8], weight[16:24, :8] = 448 * 2.0**-80, 0, 448 * 1.0000001
    weight[1:8, :8] = weight[0, 1:8] = 0
    small, scales = quantize_fp8(weight, (8, 8), ue8m0=True)
    assert bool((torch.frexp(scales).mantissa == 0.5).all())
    assert scales[:3, 0].tolist() == [2.0**-80, 2.0**-126, 2.0]
    plain = quantize_fp8(weight, (8, 8))[1]
    assert bool(((scales >= plain) & (scales / 2 < plain)).all())
    back = dequantize_fp8(small, scales, (8, 8))
    again = dequantize_fp8(*quantize_fp8(back, (8, 8), ue8m0=True), (8, 8))
    assert torch.equal(again, back), "what it stands for stays as it is"


def test_zeros_and_the_smallest_numbers_stay_finite() -> None:
    weight = torch.zeros(4, 6)
    weight[2, 3], weight[0, 5] = 1e-44, -torch.finfo(torch.float32).max
    small, scales = quantize_fp8(weight, (2, 3))
    assert bool(scales.isfinite().all() and (scales > 0).all())
    back = dequantize_fp8(small, scales, (2, 3))
    assert back[0, 5] == pytest.approx(weight[0, 5].item(), rel=1e-6)
    assert back.count_nonzero() == 1, "1e-44 is nothing beside a scale that is no denormal number"


def test_the_files_of_the_model_say_which_weights_are_in_fp8(tmp_path: Path) -> None:
    """Names say nothing: a projection that was left full stays so."""
    save_file(
        {
            "a_proj.weight": torch.zeros(3, 5).to(FP8_DTYPE),
            "a_proj.weight_scale_inv": torch.ones(2, 2),
            "b_proj.weight": torch.zeros(3, 5),
        },
        tmp_path / "model.safetensors",
    )
    how = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [2, 4]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": how}))
    fp8 = Fp8Weights.of(tmp_path)
    assert fp8 is not None
    assert fp8 == Fp8Weights(block=(2, 4), names=frozenset({"a_proj.weight"}))
    for name in ("a_proj.weight", "b_proj.weight"):
        sent = list(on_wire(name, torch.ones(3, 5), torch.bfloat16, WeightForms(fp8=fp8)))
        assert sum(value.nbytes for _, value in sent) == wire_bytes(
            name, torch.ones(3, 5), torch.bfloat16, WeightForms(fp8=fp8)
        )
        assert [one for one, _ in sent] == [name, f"{name}_scale_inv"][: 2 if name.startswith("a") else 1]
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {**how, "scale_fmt": "ue8m0"}}))
    powers = Fp8Weights.of(tmp_path)
    assert powers == replace(fp8, ue8m0=True)
    (_, scales) = on_wire("a_proj.weight", torch.full((3, 5), 449.0), torch.bfloat16, WeightForms(fp8=powers))
    assert bool((scales[1] == 2).all())
    for other in ({"fmt": "e5m2"}, {"weight_block_size": None}, {"quant_method": "gptq"}):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {**how, **other}}))
        assert Fp8Weights.of(tmp_path) is None


def test_blocks_are_scaled_each_by_its_own() -> None:
    weight = torch.tensor([[1.0, 2.0, -4.0], [0.5, 1.0, 8.0], [2.0, 2.0, 2.0]]).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    expected = torch.tensor([[1.0, 2.0, -40.0], [0.5, 1.0, 80.0], [200.0, 200.0, 2000.0]])
    assert torch.equal(dequantize_fp8(weight, scale, (2, 2)), expected)
    with pytest.raises(ValueError, match=r"\(1, 2\) scales for blocks of \(2, 2\), expected \(2, 2\)"):
        dequantize_fp8(weight, scale[:1], (2, 2))


def test_what_counts_as_fp8() -> None:
    assert fp8_block({"quant_method": "fp8", "weight_block_size": [128, 64]}) == (128, 64)
    for other in (None, {}, {"quant_method": "fp8"}, {"quant_method": "gptq", "weight_block_size": [1, 1]}):
        assert fp8_block(other) is None
