"""Checkpoints of models whose layers are not alike go from one layout to another."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from megatron_ranks import same, save_or_resume

from rlcore import Part
from rlcore_qwen.delta_tiny import tiny_next, tiny_qwen3_5
from rlcore_testing.ranks import run_ranks
from rlcore_toolkit.presets import VOCABULARY

TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("preset", "factory"),
    [
        (tiny_next, "rlcore_qwen.next:NextBridge"),
        (tiny_qwen3_5, "rlcore_qwen.qwen3_5:DenseBridge"),
    ],
)
def test_a_checkpoint_continues_on_other_layouts(
    preset: Callable[[Path], Path], factory: str, tmp_path: Path
) -> None:
    bridge, path, folder = Part(name="delta", factory=factory), preset(tmp_path / "m"), tmp_path / "saved"
    first = run_ranks(save_or_resume, 2, bridge, path, folder, TENSOR, len(VOCABULARY))
    saved, continued, _ = first[0]
    for ranks, layout in ((2, PIPELINE), (1, {})):
        again = run_ranks(save_or_resume, ranks, bridge, path, folder, layout, len(VOCABULARY))
        loaded, after, _ = again[0]
        same(loaded, saved)
        for name, tensor in saved.items():
            torch.testing.assert_close(after[name], continued[name], atol=1e-4, rtol=0, msg=name)
            assert not torch.equal(after[name], tensor), name
