"""What travels in one request."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore import Fp8Weights, WeightForms, checksum
from rlcore_sglang import bucket as sglang_bucket
from rlcore_sglang.publish import TensorPublisher
from rlcore_toolkit import wire_tensors
from rlcore_toolkit.publishers.bucket import bucketed

LATENT = "model.layers.{}.self_attn.{}.weight"
ONE = [LATENT.format(0, name) for name in ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj")]
SIZES = {**dict(zip(ONE, (40, 60, 100, 40), strict=True)), LATENT.format(1, "q_a_proj"): 30}


@pytest.mark.parametrize("limit", [1, 80, 100, 139, 140, 1000])
def test_what_sglang_makes_one_matrix_of_is_never_apart(limit: int) -> None:
    named = [(name, torch.zeros(size, dtype=torch.uint8)) for name, size in SIZES.items()]
    found = [[name for name, _ in run] for run in bucketed(named, lambda _, one: one.nbytes, limit)]
    assert sorted(name for run in found for name in run) == sorted(SIZES)
    [of_one] = [run for run in found if ONE[0] in run]
    assert ONE[3] in of_one
    assert all(sum(SIZES[name] for name in run) <= max(limit, 100) for run in found)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(3, 5, generator=generator).t(),
        "a.weight": torch.randn(7, generator=generator),
        "scalar": torch.tensor(2.5),
    }


def unflattened(content: bytes, named: set[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """The tensors of a payload, each viewed where it lies, as SGLang does.

    `named`: gets what the pickle names.
    """

    class Reader(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            named.add((module_name, global_name))
            is_ours = (module_name, global_name) == sglang_bucket.SGLANG_CLASS
            return (
                sglang_bucket.FlattenedTensorMetadata
                if is_ours
                else super().find_class(module_name, global_name)
            )

    bucket = Reader(io.BytesIO(content)).load()
    found = {}
    for meta in bucket["metadata"]:
        assert isinstance(meta, sglang_bucket.FlattenedTensorMetadata)
        flat = bucket["flattened_tensor"][meta.start_idx : meta.end_idx]
        found[meta.name] = flat.view(meta.dtype).reshape(meta.shape)
    return found


def test_a_payload_is_sglangs_pickle_and_nothing_else(tmp_path: Path) -> None:
    named: set[tuple[str, str]] = set()
    publisher = TensorPublisher(root=tmp_path, dtype="fp32", bucket_bytes=64)
    found: dict[str, torch.Tensor] = {}
    sent = list(publisher.pieces(tensors().items(), sends=True, tells=True))
    for piece in sent:
        found |= unflattened(piece.content, named)
    assert [piece.is_last for piece in sent] == [False, True]
    assert all(torch.equal(found[name], value) for name, value in tensors().items())
    assert named - {sglang_bucket.SGLANG_CLASS} <= {
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch.storage", "_load_from_bytes"),
        ("torch", "Size"),
        ("torch", "float32"),
        ("collections", "OrderedDict"),
    }


def test_a_router_bias_in_fp32_can_be_viewed_behind_an_odd_number_of_bf16(tmp_path: Path) -> None:
    forms = WeightForms(fp32=("e_score_correction_bias",))
    weights = {"a.weight": torch.ones(3), "gate.e_score_correction_bias": torch.rand(2)}
    publisher = TensorPublisher(root=tmp_path, dtype="bf16", bucket_bytes=1000, forms=forms)
    [piece] = publisher.pieces(weights.items(), sends=True, tells=True)
    found = unflattened(piece.content, set())
    assert {name: one.dtype for name, one in found.items()} == {
        "a.weight": torch.bfloat16,
        "gate.e_score_correction_bias": torch.float32,
    }
    assert all(torch.equal(found[name].float(), value) for name, value in weights.items())


@pytest.mark.parametrize("limit", [1, 40, 1000])
def test_a_weight_in_fp8_brings_its_scales_in_the_same_bucket(tmp_path: Path, limit: int) -> None:
    """So do the two that SGLang makes one matrix of, with the scales of both."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(3, 5, generator=generator) for name in (*ONE, "norm.weight")}
    forms = WeightForms(fp8=Fp8Weights(block=(2, 4), names=frozenset(ONE)))
    publisher = TensorPublisher(root=tmp_path, dtype="bf16", bucket_bytes=limit).holding(forms)
    found: dict[str, torch.Tensor] = {}
    for piece in publisher.pieces(weights.items(), sends=True, tells=True):
        names, read = piece.bucket.names, unflattened(piece.content, set())
        assert {f"{name}_scale_inv" for name in names if name in ONE} <= set(names)
        assert (ONE[0] in names) == (ONE[3] in names)
        assert {name: checksum(one) for name, one in read.items()} == piece.checksums
        found |= read
    wanted = wire_tensors(weights.items(), "bf16", forms)
    assert {name: checksum(one) for name, one in found.items()} == {
        name: checksum(one) for name, one in wanted.items()
    }
