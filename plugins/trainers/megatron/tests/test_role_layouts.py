"""The same steps under every parallel layout: data, tensor, sequence, pipeline and context parallel ranks."""

from typing import Any

import pytest
import torch
from megatron_ranks import QWEN
from torch import Tensor

from rlcore import ModelSpec, OptimizerSettings, TrainBatch, even_shares
from rlcore_megatron.fields import RECOMPUTE, check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, policy_loss, random_batch

# eps well above the noise of tiny gradients, whose sign Adam would otherwise blow up to a whole step
SETTINGS = OptimizerSettings(
    lr=1e-2, adam_eps=1e-4, clip_grad=0.5, lr_schedule="cosine", warmup_steps=2, total_steps=4
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "sequence": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "clone_scatter_output_in_embedding": False,
    },
    "uneven-virtual": {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Ett|t|t|L"},
    "data": {},
    "tensor": {"tensor_model_parallel_size": 2},
    "tensor-recomputed": {
        "tensor_model_parallel_size": 2,
        **RECOMPUTE,
        "distribute_saved_activations": True,
    },
    "pipeline": {"pipeline_model_parallel_size": 2},
    "pipeline-tied": {"pipeline_model_parallel_size": 2},
    "virtual": {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "uneven": {
        "pipeline_model_parallel_size": 2,
        "num_layers_in_first_pipeline_stage": 3,
        "batch_p2p_comm": True,
        "batch_p2p_sync": False,
        "deallocate_pipeline_outputs": True,
    },
    "counted": {
        "pipeline_model_parallel_size": 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "context": {"context_parallel_size": 2},
    "context-recomputed": {"context_parallel_size": 2, **RECOMPUTE},
    "data-unsharded": {"use_distributed_optimizer": False},
    "data-overlapped": {"overlap_grad_reduce": True, "overlap_param_gather": True},
}


def _batches() -> list[TrainBatch]:
    """With the second a data-parallel rank may have empty micro-batches, with the third nothing."""
    return [random_batch(9), random_batch(3, seed=5), random_batch(1, seed=6)]


def _run(rank: int, world: int, port: int, path: str, megatron: dict[str, Any]) -> Any:
    parallel.start(rank, world, "127.0.0.1", port, **split(check_fields(megatron)).layout)
    role = Role(ModelSpec(path=path, bridge=QWEN, fields=megatron), SETTINGS)
    scores, steps = [], []
    for batch in _batches():
        mine = even_shares(batch.lengths.tolist(), parallel.data_size())[parallel.data_rank()]
        share = batch.select(mine)
        found = role.forward(share, temperature=0.8, tokens_per_rank=30, entropy=True)
        scores.append((mine, {name: column.tolist() for name, column in found.items()}))
        steps.append(
            role.train(
                share, policy_loss, temperature=0.8, tokens_per_rank=30, entropy=True, entropy_grad=True
            )
        )
    weights = {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}
    parallel.stop()
    return scores, steps, weights


@pytest.fixture(scope="module")
def alone(model: str) -> Any:
    return run_ranks(_run, 1, model, {})[0]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A model of a layer for each chunk of two virtual stages, and what one rank makes of it."""
    path = str(make_qwen3(tmp_path_factory.mktemp("deep"), num_hidden_layers=4))
    return path, run_ranks(_run, 1, path, {})[0]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A model whose first and last stage share a weight, and what one rank makes of it."""
    path = str(make_qwen3(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True))
    return path, run_ranks(_run, 1, path, {})[0]


def _in_order(results: list[Any], index: int, name: str) -> Tensor:
    """A column of batch `index`, put together from the data-parallel ranks."""
    batch = _batches()[index]
    slots = torch.arange(int(batch.response_lengths.sum())).split(batch.response_lengths.tolist())
    out = torch.full((int(batch.response_lengths.sum()),), torch.nan)
    for scores, _, _ in results:
        rows, columns = scores[index]
        if rows:
            out[torch.cat([slots[row] for row in rows])] = torch.tensor(columns[name])
    return out


@pytest.mark.grid
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_agree(
    model: str, alone: Any, tied: tuple[str, Any], deep: tuple[str, Any], layout: str
) -> None:
    if layout.endswith("tied"):
        model, alone = tied
    elif "virtual" in layout or layout in ("uneven", "counted"):
        model, alone = deep
    results = run_ranks(_run, 2, model, LAYOUTS[layout])
    for index in range(len(_batches())):
        for name in ("log_probs", "entropy"):
            for part in [results] if layout.startswith("data") else [[result] for result in results]:
                found, expected = _in_order(part, index, name), _in_order([alone], index, name)
                torch.testing.assert_close(found, expected, atol=2e-4 if index else 1e-5, rtol=0)
        expected_step = alone[1][index]
        for _, steps, _ in results:
            step = steps[index]
            assert step == results[0][1][index], "every rank reports the same"
            assert step.finite
            assert step.lr == expected_step.lr
            assert step.loss == pytest.approx(expected_step.loss, rel=1e-3, abs=1e-5)
            assert step.grad_norm == pytest.approx(expected_step.grad_norm, rel=1e-3 if index else 1e-5)
            assert step.metrics == pytest.approx(expected_step.metrics)
    for _, _, weights in results:
        torch.testing.assert_close(weights, alone[2], atol=2e-4, rtol=0)
