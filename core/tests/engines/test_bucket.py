"""What travels in one request."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import torch

from rlcore.engines.bucket import buckets, runs
from rlcore.engines.publish_file import write_version
from rlcore.engines.sglang_bucket import payloads

LATENT = "model.layers.{}.self_attn.{}.weight"
ONE = [LATENT.format(0, name) for name in ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj")]
SIZES = {**dict(zip(ONE, (40, 60, 100, 40), strict=True)), LATENT.format(1, "q_a_proj"): 30}


@pytest.mark.parametrize("limit", [1, 80, 100, 139, 140, 1000])
def test_what_sglang_makes_one_matrix_of_is_never_apart(limit: int) -> None:
    found = runs(SIZES, limit)
    assert sorted(name for run in found for name in run) == sorted(SIZES)
    [of_one] = [run for run in found if ONE[0] in run]
    assert ONE[3] in of_one
    assert all(sum(SIZES[name] for name in run) <= max(limit, 100) for run in found)


def test_both_ways_of_sending_keep_it_together(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(size // 2) for name, size in SIZES.items()}
    in_one = [one for one in buckets(tensors, 160) if ONE[0] in one.names]
    assert ONE[3] in in_one[0].names
    location = write_version(tmp_path, tensors.items(), 1, dtype="fp32")
    sent = [base64.b64decode(text) for text in payloads(location.file, 160)]
    assert [ONE[3].encode() in one for one in sent] == [ONE[0].encode() in one for one in sent]
    assert len(sent) > 1
