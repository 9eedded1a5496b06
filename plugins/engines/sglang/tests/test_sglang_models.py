"""What SGLang would end on, or compute otherwise than the trainer, is one sentence before it is started."""

from typing import Any

import pytest

from rlcore.api.errors import ModelError
from rlcore_sglang.models import (
    FLASH,
    GEMMA,
    GLM5,
    LATENT,
    MINIMAX,
    MISTRAL,
    ON_GPUS,
    PUBLISHED,
    SPARSE,
    check_model,
)

YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}


def _config(**changes: Any) -> dict[str, Any]:
    return {"architectures": [LATENT], **PUBLISHED[LATENT], **YARN, **changes}


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    "config", [_config(), _config(rope_parameters=None, rope_scaling={"type": "yarn"}), {"architectures": []}]
)
def test_published_models_pass(config: dict[str, Any], on_gpu: bool) -> None:
    check_model(config, on_gpu=on_gpu)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "found"),
    [("moe_layer_freq", None, "none"), ("topk_method", "greedy", "'greedy'"), ("scoring_func", None, "none")],
)
def test_a_field_that_sglang_reads_is_asked_for(name: str, value: Any, found: str, on_gpu: bool) -> None:
    config = _config(**{name: value})
    if value is None:
        del config[name]
    said = f"{name} of config.json, found {found}, expected {PUBLISHED[LATENT][name]!r}"
    with pytest.raises(ModelError, match=said):
        check_model(config, on_gpu=on_gpu)


@pytest.mark.parametrize("architecture", [SPARSE, GLM5])
def test_of_sparse_attention_it_reads_these_fields_too(architecture: str) -> None:
    """Without `indexer_rope_interleave` it would turn the halves of GLM-5's index keys, not neighbors."""
    for name in PUBLISHED[architecture]:
        config = {"architectures": [architecture], **PUBLISHED[architecture], name: False}
        with pytest.raises(ModelError, match=f"SGLang reads {name} of config.json, found False"):
            check_model(config, on_gpu=True)


@pytest.mark.parametrize("architecture", MISTRAL)
def test_a_window_that_it_leaves_out(architecture: str) -> None:
    check_model({"architectures": [architecture], "sliding_window": None}, on_gpu=True)
    with pytest.raises(ModelError, match="with a sliding_window of 8, which SGLang leaves out"):
        check_model({"architectures": [architecture], "sliding_window": 8}, on_gpu=True)


@pytest.mark.parametrize("architecture", GEMMA)
def test_an_output_matrix_that_it_leaves_out(architecture: str) -> None:
    check_model({"architectures": [architecture]}, on_gpu=True)
    with pytest.raises(ModelError, match="leaves out an output matrix of its own"):
        check_model({"architectures": [architecture], "tie_word_embeddings": False}, on_gpu=True)


def test_queries_that_it_grows_by_another_length() -> None:
    rope = {"rope_type": "yarn", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384}
    config = {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": rope}
    check_model({**config, "max_position_embeddings": 16384}, on_gpu=True)
    with pytest.raises(ModelError, match=r"found 262144, .* set 16384 if no sequence is longer"):
        check_model({**config, "max_position_embeddings": 262144}, on_gpu=True)


def _minimax(**changes: Any) -> dict[str, Any]:
    return {"architectures": [MINIMAX], **PUBLISHED[MINIMAX], "head_dim": 128, "rotary_dim": 64, **changes}


@pytest.mark.parametrize(
    "config",
    [
        _minimax(),
        _minimax(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
        _minimax(rotary_dim=None),
        *({"architectures": [name], **PUBLISHED.get(name, {})} for name in ON_GPUS if name != MINIMAX),
    ],
)
def test_what_it_computes_on_gpus_alone_is_refused_on_a_cpu(config: dict[str, Any]) -> None:
    check_model(config, on_gpu=True)
    with pytest.raises(ModelError, match=r"on a CPU take --engine local\.$"):
        check_model(config, on_gpu=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_qk_norm": False}, "use_qk_norm of config.json, found False, expected True"),
        (
            {"rotary_dim": None, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "rotary_dim of config.json, found None, but its partial_rotary_factor 0.5 of a head of 128 is 64",
        ),
    ],
)
def test_what_it_would_compute_otherwise_of_a_minimax(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_model(_minimax(**changes), on_gpu=True)


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_type": "default"}}])
def test_positions_that_it_lacks_on_a_cpu_are_refused_there(rope: dict[str, Any]) -> None:
    config = {key: value for key, value in _config().items() if key not in YARN} | rope
    check_model(config, on_gpu=True)
    with pytest.raises(ModelError, match=r"on a CPU .* found rope_type 'default'"):
        check_model(config, on_gpu=False)


def test_fp8_is_for_gpus() -> None:
    config = _config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    check_model(config, on_gpu=True)
    with pytest.raises(ModelError, match=r"on GPUs alone; .* of that a directory for --model\.$"):
        check_model(config, on_gpu=False)


@pytest.mark.parametrize("architecture", [LATENT, FLASH])
@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_positions_that_it_takes_for_others_are_refused(architecture: str, kind: str) -> None:
    """Of latent attention it makes yarn of every scaling."""
    config = {
        **_config(),
        **_flash(),
        "architectures": [architecture],
        "rope_parameters": {"rope_type": kind},
    }
    with pytest.raises(ModelError, match=f"makes yarn of every scaling of .* found rope_type '{kind}'"):
        check_model(config, on_gpu=True)


@pytest.mark.parametrize("architecture", ["Qwen3ForSequenceClassification", "Qwen2ForRewardModel"])
def test_a_reward_model_that_sglang_has_a_class_for(architecture: str) -> None:
    check_model({"architectures": [architecture]}, on_gpu=True)


@pytest.mark.parametrize(
    ("architecture", "also"),
    [
        ("MistralForSequenceClassification", "InternLM2ForRewardModel; take an engine over transformers."),
        ("BertForSequenceClassification", "InternLM2ForRewardModel."),
    ],
)
def test_a_reward_model_whose_head_sglang_would_leave_out(architecture: str, also: str) -> None:
    with pytest.raises(ModelError, match=f"found a {architecture}, but of reward models SGLang") as caught:
        check_model({"architectures": [architecture]}, on_gpu=True)
    assert str(caught.value).endswith(also)


def _flash(**changes: Any) -> dict[str, Any]:
    sizes = {"q_lora_rank": 24, "num_hidden_layers": 3, "first_k_dense_replace": 1}
    return {"architectures": [FLASH], **sizes, **changes}


@pytest.mark.parametrize(
    "changes", [{}, {"mlp_layer_types": ["dense", "dense", "sparse"], "first_k_dense_replace": 2}]
)
def test_a_published_flash_passes(changes: dict[str, Any]) -> None:
    check_model(_flash(**changes), on_gpu=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q_lora_rank": None}, "no q_lora_rank in config.json; take another engine"),
        ({"first_k_dense_replace": None}, r"found None, but its mlp_layer_types are \['dense', 'sparse', 's"),
        ({"first_k_dense_replace": 0}, "first_k_dense_replace of config.json, found 0, but"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "found 1, but its mlp_layer_types are"),
    ],
)
def test_a_flash_that_sglang_would_make_another_one_of(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_model(_flash(**changes), on_gpu=True)
