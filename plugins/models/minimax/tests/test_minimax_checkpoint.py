"""The joint norms, which tensor-parallel ranks share, in a checkpoint that is read under another layout."""

from pathlib import Path
from typing import Any

import pytest
from megatron_ranks import same, save_or_resume
from transformers import MiniMaxM2Config

from rlcore import Part
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.ranks import run_ranks

BRIDGE = Part(name="minimax_m2", factory="rlcore_minimax.bridge:MiniMaxBridge")
CUT = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
TINY: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 48, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 12},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    **{"eos_token_id": 1, "bos_token_id": None, "max_position_embeddings": 128},
}


@pytest.mark.full
def test_a_checkpoint_of_two_ranks_is_read_by_one(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "saved"
    make_checkpoint(model, MiniMaxM2Config(**TINY))
    expected, _, norm = run_ranks(save_or_resume, 2, BRIDGE, model, folder, CUT)[0]
    found, _, again = run_ranks(save_or_resume, 1, BRIDGE, model, folder, {})[0]
    same(found, expected)
    moved = [name for name, values in expected.items() if "q_norm" in name and not (values == 1).all()]
    assert len(moved) == TINY["num_hidden_layers"], "their weights have learned"
    assert again == pytest.approx(norm, rel=1e-4)
