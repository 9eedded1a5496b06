"""What the trainer says of a run and of a model before anything starts."""

import json
import tomllib
from pathlib import Path

import pytest
from refusals import Case, cases
from runs import run_of

from rlcore.api.errors import ConfigError
from rlcore.config.toml import flatten
from rlcore_megatron.config import MegatronConfig

SIZES = {"megatron.tensor_model_parallel_size": "2", "megatron.pipeline_model_parallel_size": "2"}


@cases("megatron: runs")
def test_a_run_that_does_not_fit(case: Case) -> None:
    with case.refused():
        run_of("grpo", case.given)


def test_ranks_follow_the_parallel_sizes() -> None:
    assert run_of("grpo", SIZES).run.ranks == 4
    assert run_of("grpo", {**SIZES, "ranks": "8"}).run.ranks == 8


def test_experts_lie_across_the_dense_ranks() -> None:
    sizes = {"tensor_model_parallel_size": 4, "context_parallel_size": 2, "expert_model_parallel_size": "6"}
    assert MegatronConfig().model_ranks(sizes) == 24
    assert MegatronConfig().model_ranks({**sizes, "expert_tensor_parallel_size": "4"}) == 24
    assert MegatronConfig().model_ranks({**sizes, "expert_tensor_parallel_size": 8}) == 48


def test_a_layer_for_multi_token_prediction_is_said_to_be_left_out() -> None:
    config, layer = MegatronConfig(), {"num_nextn_predict_layers": 1}
    said = (
        "Left out: layers for multi-token prediction (1), neither trained, published nor saved; "
        "--megatron.mtp-num-layers 1 keeps one."
    )
    assert config.left_out({}, layer) == said
    assert config.left_out({}, {}) is config.left_out({}, {"num_nextn_predict_layers": 0}) is None
    assert config.left_out({"mtp_num_layers": "1"}, layer) is None


TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}


@cases("megatron: models")
def test_a_model_that_does_not_fit(tmp_path: Path, case: Case) -> None:
    changes, flags = case.given
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    with case.refused(ConfigError, tmp_path):
        run_of("grpo", {"model": str(tmp_path), "max_prompt_tokens": "32", **flags})


TENSOR = "megatron.tensor_model_parallel_size"


@cases("megatron: roles")
def test_a_role_that_cannot_have_its_own_fields(case: Case) -> None:
    recipe, flags = case.given
    with case.refused(ConfigError):
        run_of(recipe, flags)


def test_a_role_has_its_own_fields_above_those_of_the_policy() -> None:
    flags = {TENSOR: "2", "megatron.adam_beta2": "0.98", f"critic.{TENSOR}": "1", "critic.ranks": "8"}
    flags["ranks"] = "4"
    found = run_of("ppo", flags)
    assert found.fields_of("critic") == {"tensor_model_parallel_size": 1, "adam_beta2": 0.98}
    assert found.fields_of("reference") == found.trainer_fields
    read = dict(flatten(tomllib.loads(found.to_toml())))
    assert (read[TENSOR], read[f"critic.{TENSOR}"]) == (2, 1), "so a file says it"
    beside = run_of("ppo", {"critic.megatron.adam_beta2": "0.9"})
    assert beside.fields_of("critic") == {"adam_beta2": 0.9}


@pytest.mark.parametrize("name", ["megatron", "critic.megatron"])
def test_a_table_is_no_field(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--{name} is unknown"):
        run_of("ppo", {name: "2"})


def test_a_critic_of_its_own_layout_must_fit_its_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 4}))
    flags = {"model": str(tmp_path), "max_prompt_tokens": "32", "critic.ranks": "4"}
    flags[f"critic.{TENSOR}"] = "4"
    with pytest.raises(ConfigError) as caught:
        run_of("ppo", flags)
    assert str(caught.value) == (
        "Of the critic: --megatron.tensor-model-parallel-size: found 4, expected a divisor of the model's "
        "num_key_value_heads (2)."
    )
