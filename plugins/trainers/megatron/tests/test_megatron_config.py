"""What the trainer says of a run and of a model before anything starts."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore.api.errors import ConfigError, UserError
from rlcore.config.toml import flatten
from rlcore_megatron.config import MegatronConfig

SIZES = {"megatron.tensor_model_parallel_size": "2", "megatron.pipeline_model_parallel_size": "2"}
RUNS = [
    ({"tp": "2"}, "--tp is unknown. Did you mean '--megatron.tensor-model-parallel-size'?"),
    (
        {"megatron.tensor_model_parallel_size": "two"},
        "--megatron.tensor-model-parallel-size: found 'two', expected an integer of at least 1.",
    ),
    (
        {"kl_coef": "0.1", "reference_placement": "swapped", "megatron.overlap_param_gather": "true"},
        "--reference-placement: found swapped with --megatron.overlap-param-gather, which fills in weights "
        "late; expected resident.",
    ),
    (
        {"megatron.tensor_model_parallel_size": "4"},
        "--megatron.tensor-model-parallel-size: found 4, expected a divisor of the model's "
        "num_key_value_heads (2).",
    ),
    (
        {"max_response_tokens": "4000", "tokens_per_rank": "8192"},
        "--max-prompt-tokens plus --max-response-tokens: found 4032, expected at most 2048, the context of "
        "model 'qwen3'.",
    ),
]


@pytest.mark.parametrize(("flags", "sentence"), RUNS)
def test_a_run_that_does_not_fit(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        run_of("grpo", flags)
    assert str(caught.value) == sentence


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
MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"megatron.mtp_num_layers": "1"},
        "--megatron.mtp-num-layers: found 1, but the model's num_nextn_predict_layers is 0.",
    ),
    (
        {},
        {"megatron.tensor_model_parallel_size": "4"},
        "--megatron.tensor-model-parallel-size: found 4, expected a divisor of the model's "
        "num_key_value_heads (2).",
    ),
    (
        {},
        {"megatron.pipeline_model_parallel_size": "2"},
        "--megatron.pipeline-model-parallel-size: found 2, expected a divisor of the model's "
        "num_hidden_layers (3); or divide them unevenly, such as by "
        "--megatron.num-layers-in-last-pipeline-stage.",
    ),
    (
        {},
        {"megatron.pipeline_model_parallel_size": "3", "megatron.virtual_pipeline_model_parallel_size": "2"},
        "--megatron.virtual-pipeline-model-parallel-size: found 2, expected a divisor of the layers of each "
        "stage; stage 0 of 3 has 1 of the model's num_hidden_layers (3).",
    ),
    (
        {},
        {"megatron.expert_model_parallel_size": "2"},
        "--megatron.expert-model-parallel-size: found 2, but the model has no experts; leave it out.",
    ),
    (
        {"n_routed_experts": 8},
        {"megatron.expert_model_parallel_size": "3"},
        "--megatron.expert-model-parallel-size: found 3, expected a divisor of the model's experts (8).",
    ),
    (
        {"num_experts": 8, "moe_intermediate_size": 7},
        {"megatron.expert_tensor_parallel_size": "2"},
        "--megatron.expert-tensor-parallel-size: found 2, expected a divisor of the size of an expert (7).",
    ),
    (
        {"num_experts": 8},
        {"megatron.tensor_model_parallel_size": "2"},
        "--megatron.tensor-model-parallel-size: found 2 for a model with experts, which needs "
        "--megatron.sequence-parallel true as well.",
    ),
    (
        {"num_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 7},
        {"megatron.tensor_model_parallel_size": "2", "megatron.sequence_parallel": "true"},
        "--megatron.tensor-model-parallel-size: found 2, expected a divisor of the size of the model's "
        "shared experts (7).",
    ),
    (
        {"n_routed_experts": 8, "num_attention_heads": 6, "num_key_value_heads": 6, "kv_lora_rank": 16},
        {"megatron.tensor_model_parallel_size": "4", "megatron.sequence_parallel": "true"},
        "--megatron.tensor-model-parallel-size: found 4, expected a divisor of the model's "
        "num_attention_heads (6).",
    ),
    (
        {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}},
        {},
        "--model: found model_type 'kimi_k2', which transformers knows only by code from the model's "
        "repository, and rlcore does not run such code; if the architecture is that of another type "
        "(Kimi-K2 is deepseek_v3), write that type into a copy of config.json, without auto_map.",
    ),
]


@pytest.mark.parametrize(("changes", "flags", "sentence"), MODELS)
def test_a_model_that_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], flags: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    with pytest.raises(ConfigError) as caught:
        run_of("grpo", {"model": str(tmp_path), "max_prompt_tokens": "32", **flags})
    assert str(caught.value) == sentence


TENSOR = "megatron.tensor_model_parallel_size"
ROLE_TABLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "ppo",
        {f"critic.{TENSOR}": "2"},
        "--critic.megatron.tensor-model-parallel-size: the critic is on the policy's workers, whose layout "
        "is that of --megatron.tensor-model-parallel-size; add --critic-ranks.",
    ),
    (
        "grpo",
        {"kl_coef": "0.1", f"reference.{TENSOR}": "2"},
        "--reference.megatron.tensor-model-parallel-size: the reference is on the policy's workers, whose "
        "layout is that of --megatron.tensor-model-parallel-size; add --reference-ranks.",
    ),
    (
        "grpo",
        {f"critic.{TENSOR}": "2"},
        "--critic.megatron.tensor-model-parallel-size: the run has no critic; leave it out.",
    ),
    (
        "grpo",
        {
            "kl_coef": "0.1",
            "reference_placement": "swapped",
            "reference.megatron.deterministic_mode": "true",
        },
        "--reference.megatron.deterministic-mode: the reference borrows the policy's model by "
        "--reference-placement swapped.",
    ),
    (
        "grpo",
        {"kl_coef": "0.1", f"reference.{TENSOR}": "2", "reference_ranks": "1"},
        "--reference-ranks: found 1, expected a multiple of 2, the ranks that hold the reference under the "
        "trainer's parallel sizes.",
    ),
    (
        "ppo",
        {f"critic.{TENSOR}": "2", "critic_ranks": "3"},
        "--critic-ranks: found 3, expected a multiple of 2, the ranks that hold the critic under the "
        "trainer's parallel sizes.",
    ),
]


@pytest.mark.parametrize(("recipe", "flags", "sentence"), ROLE_TABLES)
def test_a_role_that_cannot_have_its_own_fields(recipe: str, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(recipe, flags)
    assert str(caught.value) == sentence


def test_a_role_has_its_own_fields_above_those_of_the_policy() -> None:
    flags = {TENSOR: "2", "megatron.adam_beta2": "0.98", f"critic.{TENSOR}": "1", "critic_ranks": "8"}
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
    flags = {"model": str(tmp_path), "max_prompt_tokens": "32", "critic_ranks": "4"}
    flags[f"critic.{TENSOR}"] = "4"
    with pytest.raises(ConfigError) as caught:
        run_of("ppo", flags)
    assert str(caught.value) == (
        "Of the critic: --megatron.tensor-model-parallel-size: found 4, expected a divisor of the model's "
        "num_key_value_heads (2)."
    )
