"""`--megatron.<field>`: what is taken, as what type, by whom, and what is refused in which words."""

import dataclasses
import runpy
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import rlcore_megatron.mcore  # noqa: F401  # makes megatron-core importable
from rlcore.api.errors import ConfigError
from rlcore_megatron.config import OF_PROCESS
from rlcore_megatron.field_table import table
from rlcore_megatron.fields import NARROWED, RECOMPUTE, check_fields, split
from rlcore_megatron.source import CONFIGS, fields_of, known_fields

ROOT = Path(__file__).parents[4]


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
        ("tp", "2", "Did you mean --megatron.tensor-model-parallel-size?"),
        ("tensor-model-paralel-size", "2", "Did you mean 'tensor-model-parallel-size'?"),
        ("lr", "1e-3", "--megatron.lr is set by rlcore: use --lr."),
        ("clip-grad", "1", "use --clip-grad."),
        ("bf16", "true", "use --dtype."),
        ("hidden-size", "64", "it belongs to the model"),
        ("fp8", "e4m3", "TransformerEngine's layers in fp8 or fp4"),
        ("tp-comm-overlap", "true", "would have no effect: it is of TransformerEngine's layers"),
        ("gradient-accumulation-fusion", "true", "needs apex, built with its CUDA extensions, which is not"),
        ("cp-comm-type", "a2a", "context parallelism has one form here"),
        (
            "expert-tensor-parallel-size",
            "none",
            "a valid integer, unable to parse string as an integer (where",
        ),
        ("moe-extended-tp", "true", "--megatron.expert-tensor-parallel-size has taken its place"),
        ("moe-router-topk", "2", "it belongs to the model"),
        ("moe-aux-loss-coeff", "0.01", "come together: give both, or neither"),
        ("moe-aux-loss-coeff", "-1", "greater than or equal to 0"),
        ("moe-router-load-balancing-type", "aux_loss", "which samples share a micro-batch"),
        ("moe-router-load-balancing-type", "seq_aux_loss", "come together: give both, or neither"),
        ("moe-router-bias-update-rate", "0.001", "seq_aux_loss alone"),
        ("moe-pad-expert-input-to-capacity", "true", "no token is dropped"),
        (
            "virtual-pipeline-model-parallel-size",
            "2",
            "needs --megatron.pipeline-model-parallel-size 2 or more",
        ),
        ("num-layers-in-first-pipeline-stage", "2", "needs --megatron.pipeline-model-parallel-size 2"),
        ("fp8", "my.module.none", "TransformerEngine's layers in fp8 or fp4"),
        ("hidden-dropout", "0.1", "with dropout, old and new log-probs"),
        ("calculate-per-token-loss", "true", "use --normalizer."),
        ("mtp-num-layers", "2", "less than or equal to 1 (checkpoints have one such layer)"),
        ("mtp-loss-scaling-factor", "0.2", "would have no effect without --megatron.mtp-num-layers 1."),
        ("mtp-standalone", "true", "on the last stage of the pipeline"),
        ("moe-token-dispatcher-type", "flex", "flex needs DeepEP, which is not here."),
        ("optimizer", "lion", "'adam', 'sgd' or 'muon'"),
        ("optimizer", "dist_muon", "saves them for one number of data-parallel ranks)."),
        ("muon-momentum", "0.5", "would have no effect without --megatron.optimizer muon."),
        ("muon-tp-mode", "blockwise", "which would else depend on how ranks share the model"),
        ("sgd-momentum", "0.5", "would have no effect without --megatron.optimizer sgd."),
        ("overlap-cpu-optimizer-d2h-h2d", "true", "without --megatron.optimizer-cpu-offload true."),
        ("exp-avg-dtype", "bf16", "without --megatron.use-precision-aware-optimizer true."),
        ("main-params-dtype", "fp16", "kept in fp32"),
        ("optimizer-offload-fraction", "1.5", "less than or equal to 1"),
        ("mamba-num-heads", "2", "it belongs to the model"),
        ("tensor-model-parallel-size", "two", "--megatron.tensor-model-parallel-size 'two': Input should be"),
        ("tensor-model-parallel-size", "0", "must be 1 or more"),
        ("recompute-granularity", "some", "'full' or 'selective'"),
        (
            "recompute-modules",
            "mlp",
            "would have no effect without --megatron.recompute-granularity selective.",
        ),
        ("recompute-num-layers", "4", "would have no effect without --megatron.recompute-granularity full."),
        ("fp32-residual-connection", "true", "cannot be honored: what layers hand on is in --dtype"),
        ("recompute-num-layers", "0", "must be 1 or more"),
        ("distribute-saved-activations", "true", "without --megatron.recompute-granularity full."),
        ("recompute-modules", "mlp,layernorm", "those that discard their output are TransformerEngine's"),
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


def test_the_page_is_made_of_the_table() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "megatron_fields.py"))
    page = ROOT / "docs" / "megatron_fields.md"
    assert page.read_text() == script["page"](), "run scripts/megatron_fields.py"
