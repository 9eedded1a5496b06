"""`--megatron.<field>`: what is taken, as what type, by whom, and what is refused in which words."""

from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore_megatron.mcore.fields import (
    DDP,
    HONORED,
    LAYOUT,
    OF_THE_MODEL,
    OPTIMIZER,
    OWNED,
    TRANSFORMER,
    _types as megatron_types,
    check_fields,
    split,
)


def test_text_becomes_the_type_of_the_field() -> None:
    given = {
        "tensor-model-parallel-size": "2",
        "sequence_parallel": "true",
        "recompute-granularity": "selective",
        "recompute-modules": "core_attn, mlp",
        "adam-eps": "1e-6",
        "bucket-size": "none",
        "overlap-grad-reduce": True,
    }
    checked = check_fields(given)
    assert checked == {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn", "mlp"],
        "adam_eps": 1e-6,
        "bucket_size": None,
        "overlap_grad_reduce": True,
    }
    assert check_fields(checked) == checked


def test_one_name_sets_every_class_that_has_it() -> None:
    settings = split(check_fields({"use-distributed-optimizer": "true", "tensor-model-parallel-size": "2"}))
    assert settings.optimizer == settings.ddp == {"use_distributed_optimizer": True}
    assert settings.layout == {"tensor_model_parallel_size": 2}
    assert settings.transformer == {}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tensor-model-paralel-size", "2", "Did you mean 'tensor-model-parallel-size'?"),
        ("lr", "1e-3", "--megatron.lr is set by rlcore: use --lr."),
        ("clip-grad", "1", "use --clip-grad."),
        ("bf16", "true", "use --dtype."),
        ("hidden-size", "64", "it belongs to the model"),
        ("fp8", "e4m3", "it needs TransformerEngine's fp8 or fp4"),
        ("tp-comm-overlap", "true", "it needs TransformerEngine or apex"),
        ("gradient-accumulation-fusion", "true", "it needs TransformerEngine or apex"),
        ("cp-comm-type", "a2a", "context parallelism has one form here"),
        ("expert-tensor-parallel-size", "2", "divided by --megatron.expert-model-parallel-size"),
        ("moe-router-topk", "2", "it belongs to the model"),
        ("moe-aux-loss-coeff", "0.01", "come together: give both, or neither"),
        ("moe-aux-loss-coeff", "-1", "greater than 0"),
        ("moe-router-load-balancing-type", "aux_loss", "which samples share a micro-batch"),
        ("moe-router-load-balancing-type", "seq_aux_loss", "come together: give both, or neither"),
        ("moe-router-bias-update-rate", "0.001", "seq_aux_loss moves the router"),
        ("moe-pad-expert-input-to-capacity", "true", "rlcore's layers of experts do not use it"),
        (
            "virtual-pipeline-model-parallel-size",
            "2",
            "needs --megatron.pipeline-model-parallel-size 2 or more",
        ),
        ("num-layers-in-first-pipeline-stage", "2", "pipeline stages are of equal size here"),
        ("hidden-dropout", "0.1", "with dropout, old and new log-probs"),
        ("calculate-per-token-loss", "true", "objective owns the loss"),
        ("mtp-num-layers", "1", "layers for multi-token prediction are left out"),
        ("transformer-impl", "transformer_engine", "it needs TransformerEngine or apex"),
        ("mamba-num-heads", "2", "this build does not use it"),
        ("tensor-model-parallel-size", "two", "--megatron.tensor-model-parallel-size 'two': Input should be"),
        ("tensor-model-parallel-size", "0", "must be 1 or more"),
        ("recompute-granularity", "some", "'full' or 'selective'"),
        ("sequence-parallel", "true", "needs --megatron.tensor-model-parallel-size 2 or more"),
    ],
)
def test_refusals(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fields({name: value})
    message = str(caught.value)
    assert expected in message
    assert message.startswith("--megatron.")
    assert "\n" not in message


def test_a_size_of_one_says_nothing_and_passes() -> None:
    assert check_fields({"expert-tensor-parallel-size": 1}) == {}


def test_the_lists_name_fields_that_this_megatron_has() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    for names, config in ((TRANSFORMER, TransformerConfig), (OPTIMIZER, OptimizerConfig)):
        assert set(names) <= set(config.__dataclass_fields__)
    assert set(DDP) <= set(DistributedDataParallelConfig.__dataclass_fields__)
    assert set(LAYOUT) | set(OWNED) | OF_THE_MODEL <= set(megatron_types())
    assert not HONORED & (set(OWNED) | OF_THE_MODEL)
