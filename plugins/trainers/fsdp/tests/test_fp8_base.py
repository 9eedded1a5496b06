"""A base in FP8 is what its blocks stand for, and that of a published directory to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from fsdp_ranks import export, join, model_of, policy_of, policy_spec, scores, train
from safetensors.torch import load_file, save_file

from rlcore import RunConfig
from rlcore_fsdp.config import FP8_BLOCK, FsdpConfig
from rlcore_testing.checkpoints import publish_fp8, tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, random_batch
from rlcore_testing.trainer_reference import hf_distributions, hf_model
from rlcore_toolkit import dequantize_fp8, quantize_fp8

EXACT = 5e-6
CONFIG = FsdpConfig(quantize_base="fp8")


def compared(rank: int, world: int, port: int, path: str, plain: str, folder: str) -> dict[str, float]:
    """How far the base in `path` is from `plain`, and what is saved and published from the policy."""
    joined, batch = join(rank, world, port, CONFIG), random_batch(8)
    policy = policy_of(joined, policy_spec(model_of(path)))
    files = load_file(f"{path}/model.safetensors")
    kept = [
        torch.equal(
            policy.quantized[name.removesuffix(end)].get_buffer(buffer),
            files[name].float() if end else files[name],
        )
        for name in files
        for end, buffer in (("", "codes"), ("_scale_inv", "scales"))
        if f"{name.removesuffix('_scale_inv')}_scale_inv" in files and name.endswith(f"weight{end}")
    ]
    gaps = {"base": scores(policy, batch) - hf_distributions(hf_model(plain), batch)[1]}
    train(policy, batch, rank, world)
    after, merged = scores(policy, batch), {name: one.clone() for name, one in policy.hf_tensors()}
    policy.stage().write(Path(folder))
    policy.load(Path(folder))
    gaps["loaded"] = scores(policy, batch) - after
    if rank == 0:
        out = export(CONFIG, model_of(path), folder)
        exported = load_file(out / "model.safetensors")
        assert exported.keys() == merged.keys()
        gaps["exported"] = torch.stack([(exported[name] - one).abs().max() for name, one in merged.items()])
        gaps["merged"] = hf_distributions(hf_model(str(out)), batch)[1] - after
    moved = after - scores(policy.base, batch)
    joined.stop()
    found = {name: float(gap.detach().abs().max()) for name, gap in (gaps | {"moved": moved}).items()}
    return found | {"kept": sum(kept), "of": len(kept)}


@pytest.mark.parametrize(("ranks", "is_published"), [(1, False), (2, True)])
def test_a_base_in_fp8_is_what_its_blocks_stand_for(ranks: int, is_published: bool, tmp_path: Path) -> None:
    """Published scales in bf16 are others than the trainer would choose."""
    path, plain = make_qwen3(tmp_path / "model"), tmp_path / "plain"
    shutil.copytree(path, plain)
    if is_published:
        stands_for = publish_fp8(path, FP8_BLOCK, torch.bfloat16)
    else:
        stands_for = tensors_of(path)
        for name in (one for one in stands_for if one.endswith("proj.weight")):
            stands_for[name] = dequantize_fp8(*quantize_fp8(stands_for[name], FP8_BLOCK), FP8_BLOCK)
    save_file(stands_for, plain / "model.safetensors", metadata={"format": "pt"})
    for gaps in run_ranks(compared, ranks, str(path), str(plain), str(tmp_path / "adapter")):
        assert (gaps.pop("kept"), gaps.pop("of")) == ((28, 28) if is_published else (0, 0))
        assert gaps.pop("moved") > 0.05
        assert gaps.pop("exported", 0.0) == gaps.pop("loaded") == 0.0
        assert all(gap < EXACT for gap in gaps.values()), gaps


def test_only_blocks_of_the_published_size_are_read() -> None:
    run, known = RunConfig.of(**{"lora.rank": 4}), {"model_type": "qwen3"}
    for base, block, is_read in (("fp8", 128, True), ("fp8", 64, False), ("none", 128, False)):
        how = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
        said = [
            *FsdpConfig.model_validate({"quantize_base": base}).model_complaints(
                run, {}, {**known, "quantization_config": how}
            )
        ]
        assert (not said) == is_read
        assert all("--trainer.quantize-base fp8" in sentence for sentence in said)
    assert not [*CONFIG.complaints(run, {}, ())]
