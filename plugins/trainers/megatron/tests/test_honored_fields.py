"""Every field that the table calls honored reaches megatron-core's config, and does there what it should."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron_ranks import QWEN

from rlcore import Config, ModelSpec, OptimizerSettings, Part
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_megatron.source import table
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch

SETTINGS = OptimizerSettings(lr=1e-2, weight_decay=0.1)

SAME: dict[str, Any] = {
    "deterministic_mode": True,
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
    "disable_bf16_reduced_precision_matmul": True,
    "clone_scatter_output_in_embedding": False,
    "deallocate_pipeline_outputs": True,
    "batch_p2p_comm": True,
    "batch_p2p_sync": False,
    "grad_reduce_in_fp32": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "align_param_gather": True,
    "bucket_size": 1000,
    "pad_buckets_for_high_nccl_busbw": True,
    "use_distributed_optimizer": False,
    "optimizer_cpu_offload": True,
    "use_precision_aware_optimizer": True,
}
"""What changes no number of one rank in fp32."""
WITH: dict[str, dict[str, Any]] = {
    "align_param_gather": {"overlap_param_gather": True, "overlap_grad_reduce": True},
    "overlap_param_gather": {"overlap_grad_reduce": True},
    "bucket_size": {"overlap_grad_reduce": True},
}
"""What a field of the tables is of use with."""
OTHER: dict[str, Any] = {
    "adam_beta1": 0.5,
    "adam_beta2": 0.5,
    "adam_eps": 1e-2,
    "decoupled_weight_decay": False,
    "apply_wd_to_qk_layernorm": True,
    "optimizer": "sgd",
}
"""What moves the weights in another way."""
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "test_role_layouts.py": (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel"),
        *("virtual_pipeline_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_layout"),
        *("num_layers_in_first_pipeline_stage", "account_for_embedding_in_pipeline_split"),
        *("account_for_loss_in_pipeline_split", "distribute_saved_activations"),
    ),
    "test_pipeline.py": ("num_layers_in_last_pipeline_stage",),
    "test_role_experts.py": ("expert_model_parallel_size", "expert_tensor_parallel_size"),
    "optimizer/test_optimizer.py": (
        *("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d", "pin_cpu_grads", "pin_cpu_params"),
        *("exp_avg_dtype", "exp_avg_sq_dtype", "sgd_momentum"),
        *("muon_momentum", "muon_split_qkv", "muon_use_nesterov", "muon_scale_mode"),
        *("muon_fp32_matmul_prec", "muon_num_ns_steps", "muon_extra_scale_factor"),
    ),
    "layers/test_balance.py": ("moe_router_load_balancing_type", "moe_aux_loss_coeff"),
    "layers/test_indexer.py": ("dsa_indexer_loss_coeff",),
    "bridges/test_mtp.py": ("mtp_num_layers", "mtp_loss_scaling_factor"),
    "test_honored_fields.py": (
        *(
            "moe_router_dtype",
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules",
        ),
    ),
}
"""What other tests set."""


def test_each_honored_field_is_set_by_a_test() -> None:
    elsewhere = {name for names in ELSEWHERE.values() for name in names}
    honored = {name for name, verdict in table().items() if verdict.kind == "honored"}
    assert set(SAME) | set(OTHER) | elsewhere == honored
    for file, names in ELSEWHERE.items():
        text = (Path(__file__).parent / file).read_text()
        assert not [name for name in names if name not in text], file


def _trained(
    rank: int, world: int, port: int, path: str, runs: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each of `runs`, what megatron's configs have for its fields, and the weights after two steps."""
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0)
    found = []
    for given in runs:
        fields = check_fields(given)
        role = Role(ModelSpec(path=path, bridge=QWEN, fields=fields), SETTINGS)
        for seed in range(2):
            role.train(random_batch(4, seed), policy_loss, temperature=1.0, tokens_per_rank=60)
        wanted = split(fields)
        has = {name: getattr(role.built.config, name) for name in wanted.transformer}
        has |= {name: getattr(role.models[0].ddp_config, name) for name in wanted.ddp}
        config = role.optimizer.chained_optimizers[0].config
        has |= {name: getattr(config, name) for name in wanted.optimizer if name != "optimizer_cpu_offload"}
        found.append((has, {name: value.numpy().copy() for name, value in hf_tensors(role.built)}))
    torch.use_deterministic_algorithms(False)
    parallel.stop()
    return found


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_they_reach_their_config_and_change_what_they_should(model: str) -> None:
    runs = [{name: value, **WITH.get(name, {})} for name, value in {**SAME, **OTHER}.items()]
    (_, plain), *found = run_ranks(_trained, 1, model, [{}, *runs])[0]
    for run, (has, weights) in zip(runs, found, strict=True):
        name = next(iter(run))
        assert name == "optimizer_cpu_offload" or has[name] == run[name]
        if name in SAME:
            assert _apart(weights, plain) < 1e-6, name
        else:
            assert _apart(weights, plain) > 1e-4, name


def _recomputed(rank: int, world: int, port: int, path: str) -> list[tuple[int, int]]:
    """Layers that ran again in the backward pass: of all, of the first one, of no whole layer."""
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0)
    ways: list[dict[str, Any]] = [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    ]
    found = []
    for fields in ways:
        role = Role(ModelSpec(path=path, bridge=QWEN, fields=check_fields(fields)), SETTINGS)
        chunk: Any = role.built.chunks[0]
        layers = chunk.decoder.layers
        counts = [0, 0]

        def count(place: int, counts: list[int] = counts) -> None:
            counts[place] += 1

        for layer in layers:
            layer.register_forward_hook(lambda *_: count(0))
            layer.mlp.register_forward_hook(lambda *_: count(1))
        role.train(random_batch(2), policy_loss, temperature=1.0, tokens_per_rank=500)
        found.append((counts[0] - len(layers), counts[1] - len(layers)))
    parallel.stop()
    return found


def test_recomputation_is_of_what_was_named(model: str) -> None:
    assert run_ranks(_recomputed, 1, model) == [[(2, 2), (1, 1), (0, 2)]]


def _router_dtypes(rank: int, world: int, port: int, path: str) -> list[str]:
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0)
    part = Part(name="qwen_moe", factory="rlcore_qwen.moe:QwenMoeBridge", config=Config())
    found = []
    for fields in ({}, {"moe_router_dtype": "fp32"}):
        spec = ModelSpec(path=path, bridge=part, dtype="bf16", fields=check_fields(fields))
        role = Role(spec, None)
        chunk: Any = role.built.chunks[0]
        router = chunk.decoder.layers[0].mlp.router
        found.append(str(router.gating(torch.zeros(1, 1, 32, dtype=torch.bfloat16)).dtype))
        scores = role.forward(random_batch(2), temperature=1.0, tokens_per_rank=90)
        assert scores["log_probs"].isfinite().all()
    parallel.stop()
    return found


def test_the_router_of_a_softmax_may_compute_in_fp32(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16}
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 99,
    }
    config = Qwen3MoeConfig(**sizes, **heads, num_hidden_layers=1, num_experts=4, num_experts_per_tok=2)
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    assert run_ranks(_router_dtypes, 1, str(tmp_path)) == [["torch.bfloat16", "torch.float32"]]
