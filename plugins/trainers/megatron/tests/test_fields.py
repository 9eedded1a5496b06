"""`--megatron.<field>`: what is taken, as what type, by whom, and what is refused in which words."""

import dataclasses
import subprocess
import sys
import typing
from typing import Any

import pytest
from refusals import Case, cases

import rlcore_megatron.mcore  # noqa: F401  # makes megatron-core importable
from rlcore.api.errors import ConfigError
from rlcore_megatron.config import OF_PROCESS
from rlcore_megatron.fields import NARROWED, RECOMPUTE, check_fields, split
from rlcore_megatron.source import CONFIGS, fields_of, known_fields, table


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


@cases("megatron: fields")
def test_refusals(case: Case) -> None:
    name, value = case.given
    with case.refused(ConfigError):
        check_fields({name: value})
    assert f"--megatron.{name}" in case.sentence


def test_modules_are_not_computed_again_where_all_layers_are() -> None:
    with pytest.raises(ConfigError, match=r"recompute-modules would have no effect .*granularity selective"):
        check_fields({"recompute-granularity": "full", "recompute-modules": "mlp"})


def test_computing_all_again_is_what_a_gpu_does_by_default() -> None:
    assert check_fields({"recompute-granularity": "full"}) == RECOMPUTE
    block = {**RECOMPUTE, "recompute_method": "block"}
    assert check_fields({"recompute-granularity": "full", "recompute-method": "block"}) == block


def test_a_role_takes_away_what_the_policy_computes_again() -> None:
    """By the value none, which leaves nothing to refuse."""
    own = {"recompute_granularity": "selective", "recompute_method": "none", "recompute_num_layers": "none"}
    assert check_fields({**RECOMPUTE, **own})["recompute_num_layers"] is None
    modules = {"recompute_granularity": "selective", "recompute_modules": "mlp"}
    own = {"recompute_granularity": "full", "recompute_modules": "none"}
    assert check_fields({**modules, **own}) == {**RECOMPUTE, "recompute_modules": None}


def test_saved_activations_are_distributed_where_ranks_have_the_same() -> None:
    fields = {**RECOMPUTE, "distribute_saved_activations": True}
    tensor = {**fields, "tensor_model_parallel_size": 2}
    assert check_fields(tensor) == tensor
    assert not check_fields({"distribute_saved_activations": "false"})["distribute_saved_activations"]
    with pytest.raises(ConfigError, match=r"needs --megatron.tensor-model-parallel-size 2 or more"):
        check_fields(fields)
    with pytest.raises(ConfigError, match=r"no effect with --megatron.sequence-parallel, which divides"):
        check_fields({**tensor, "sequence_parallel": True})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("muon-tp-mode", "duplicated"),
        ("hidden-dropout", "0"),
        ("attention-backend", "flash"),
        ("main-params-dtype", "torch.float32"),
        ("main-params-dtype", "float32"),
        ("attention-softmax-in-fp32", "true"),
        ("moe-token-dispatcher-type", "alltoall"),
        ("moe-router-bias-update-rate", 0.0),
        ("moe-permute-fusion", False),
        ("fp8", None),
    ],
)
def test_a_value_that_the_run_has_anyway_says_nothing(name: str, value: Any) -> None:
    assert check_fields({name: value}) == {}


def test_sgd_and_muon_keep_their_states_whole() -> None:
    assert check_fields({"optimizer": "sgd"}) == {"optimizer": "sgd", "use_distributed_optimizer": False}
    beside_muon = {"optimizer": "muon", "adam_beta1": 0.8}
    assert check_fields(beside_muon) == {**beside_muon, "use_distributed_optimizer": False}
    for given in ({"optimizer": "sgd"}, {"optimizer_cpu_offload": True}, {"overlap_param_gather": True}):
        sharded = given.get("optimizer") == "sgd"
        with pytest.raises(ConfigError, match=r"--megatron\.use-distributed-optimizer true"):
            check_fields({**given, "use_distributed_optimizer": sharded})


def test_a_balancing_loss_with_a_coefficient_of_0_is_none() -> None:
    off = {"moe-router-load-balancing-type": "seq_aux_loss", "moe-aux-loss-coeff": "0"}
    assert check_fields(off) == check_fields({"moe-router-load-balancing-type": "none"}) == {}


def test_a_layout_says_how_many_chunks_a_stage_has() -> None:
    given = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|(t|)*2L"}
    checked = check_fields(given)
    assert checked == {**given, "virtual_pipeline_model_parallel_size": 2}
    assert check_fields(checked) == checked


def test_the_table_has_a_verdict_on_every_field_of_this_megatron_and_no_other() -> None:
    assert set(table()) == set(known_fields())
    assert set(OF_PROCESS) <= {name for name, verdict in table().items() if verdict.kind == "honored"}
    for name, verdict in table().items():
        assert verdict.why or verdict.flag or verdict.called or verdict.kind == "model", name


def test_the_source_says_what_the_classes_are() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    classes = (MLATransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
    assert tuple(config.__name__ for config in classes) == CONFIGS
    for config in classes:
        read, hints = fields_of(config.__name__), typing.get_type_hints(config)
        assert list(read) == [field.name for field in dataclasses.fields(config)]
        for field in dataclasses.fields(config):
            known, verdict = read[field.name], table()[field.name]
            default = None if field.default is dataclasses.MISSING else field.default
            plain = default is None or isinstance(default, (bool, int, float, str))
            assert known.default == default if plain else isinstance(known.default, str), field.name
            if verdict.kind in ("honored", "needs") and field.name not in NARROWED:
                assert known.type == hints[field.name], field.name


def test_fields_are_checked_without_megatron() -> None:
    code = (
        "import sys\n"
        "from rlcore_megatron.fields import check_fields\n"
        "check_fields({'tensor-model-parallel-size': '2', 'recompute-granularity': 'full'})\n"
        "sys.exit(bool({'torch', 'megatron.core'} & {*sys.modules}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
