"""What SGLang asks of a model's config.json and transformers does not, checked before a server is started."""

from collections.abc import Mapping
from typing import Any

from rlcore import CLASSIFIER_HEAD, REWARD_HEAD, ModelError, classifier_of, fp8_block
from rlcore_toolkit import is_decoder

LATENT = "DeepseekV3ForCausalLM"
SPARSE, GLM5 = "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"
FLASH = "Glm4MoeLiteForCausalLM"
MINIMAX = "MiniMaxM2ForCausalLM"
QWEN3_5 = (
    f"Qwen3_5{experts}For{head}" for experts in ("", "Moe") for head in ("CausalLM", "ConditionalGeneration")
)
GEMMA = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
MISTRAL = ("MistralForCausalLM", "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
ON_GPUS: Mapping[str, str] = {
    MINIMAX: "norms",
    "GptOssForCausalLM": "windows and sinks",
    **dict.fromkeys((SPARSE, GLM5), "sparse attention"),
    **dict.fromkeys(("Qwen3NextForCausalLM", *QWEN3_5, "KimiLinearForCausalLM"), "delta nets"),
}
"""Architecture → what of it SGLang, as it is published, does not compute on a CPU."""
ROUTED: Mapping[str, Any] = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys((LATENT, SPARSE), ROUTED),
    GLM5: {**ROUTED, "indexer_rope_interleave": True},
    MINIMAX: {"use_qk_norm": True, "scoring_func": "sigmoid", "use_routing_bias": True},
}
"""Fields that SGLang reads without a default or with another, and what transformers computes without reading
them. Every published model has them."""
OTHERWISE = "or take another engine"
SGLANG_CLASSIFIERS = (
    *(f"{family}{CLASSIFIER_HEAD}" for family in ("Llama", "Qwen2", "Qwen3", "Gemma2")),
    *(f"{family}{REWARD_HEAD}" for family in ("Qwen2", "Qwen3", "InternLM2")),
)
"""Those that SGLang (0.5.23) has a class for. Of others it leaves the head out, and gives hidden states."""


def check_model(hf_config: Mapping[str, Any], *, on_gpu: bool) -> None:
    """ModelError where SGLang would end as it loads the model, or compute another one than the trainer."""
    classifier = classifier_of(hf_config)
    if classifier is not None and classifier not in SGLANG_CLASSIFIERS:
        also = "; take an engine over transformers" if is_decoder(classifier) else ""
        raise ModelError(
            f"--engine sglang: found a {classifier}, but of reward models SGLang serves "
            f"{', '.join(SGLANG_CLASSIFIERS)}{also}."
        )
    architectures = hf_config.get("architectures") or ()
    for architecture in () if on_gpu else ON_GPUS.keys() & set(architectures):
        raise ModelError(
            f"--engine sglang: found a {architecture}, whose {ON_GPUS[architecture]} SGLang computes on GPUs "
            "alone; on a CPU take --engine local."
        )
    if not on_gpu and fp8_block(hf_config.get("quantization_config")) is not None:
        raise ModelError(
            "--engine sglang: found a model in FP8, with which rlcore's SGLang computes on GPUs alone; on a "
            "CPU take --engine local, or full weights: rlcore convert makes a checkpoint of the model, "
            "and of that a directory for --model."
        )
    for architecture in architectures:
        if architecture in GEMMA:
            _check_gemma(architecture, hf_config)
        if architecture in MISTRAL:
            _check_mistral(architecture, hf_config)
    for architecture in PUBLISHED.keys() & set(architectures):
        _check_published(architecture, hf_config)
    for architecture in {SPARSE, GLM5} & set(architectures):
        _positions(architecture, hf_config)
    if LATENT in architectures:
        _check_latent(hf_config, on_gpu=on_gpu)
    if MINIMAX in architectures:
        _check_minimax(hf_config)
    if FLASH in architectures:
        _check_flash(hf_config)


def _check_published(architecture: str, hf_config: Mapping[str, Any]) -> None:
    for name, value in PUBLISHED[architecture].items():
        if hf_config.get(name) != value:
            given = repr(hf_config[name]) if name in hf_config else "none"
            raise ModelError(
                f"--engine sglang: of a {architecture} SGLang reads {name} of config.json, found {given}, "
                f"expected {value!r}; set it, {OTHERWISE}."
            )


def _check_gemma(architecture: str, hf_config: Mapping[str, Any]) -> None:
    if not hf_config.get("tie_word_embeddings", True):
        raise ModelError(
            f"--engine sglang: of a {architecture} SGLang leaves out an output matrix of its own, found "
            "tie_word_embeddings false; take another engine."
        )


def _check_mistral(architecture: str, hf_config: Mapping[str, Any]) -> None:
    if (window := hf_config.get("sliding_window")) is not None:
        raise ModelError(
            f"--engine sglang: found a {architecture} with a sliding_window of {window}, which SGLang leaves "
            f"out; set it to null if no sequence is longer, {OTHERWISE}."
        )
    rope = hf_config.get("rope_parameters") or {}
    grown, context = rope.get("original_max_position_embeddings"), hf_config.get("max_position_embeddings")
    if rope.get("llama_4_scaling_beta") and grown and context and context > grown:
        raise ModelError(
            f"--engine sglang: SGLang grows queries of a {architecture} by max_position_embeddings, found "
            f"{context}, transformers by the original; set {grown} if no sequence is longer, {OTHERWISE}."
        )


def _check_minimax(hf_config: Mapping[str, Any]) -> None:
    rope = hf_config.get("rope_parameters") or {}
    head = int(hf_config["head_dim"])
    turned = int(hf_config.get("rotary_dim") or head)  # transformers makes a share of it, SGLang reads it
    share = rope.get("partial_rotary_factor", hf_config.get("partial_rotary_factor", turned / head))
    if int(head * share) != turned:
        raise ModelError(
            f"--engine sglang: of a {MINIMAX} SGLang reads rotary_dim of config.json, found "
            f"{hf_config.get('rotary_dim', 'none')}, but its partial_rotary_factor {share} of a head of "
            f"{head} is {int(head * share)}; set it, {OTHERWISE}."
        )


def _check_latent(hf_config: Mapping[str, Any], *, on_gpu: bool) -> None:
    kind = _positions(LATENT, hf_config)
    if kind != "yarn" and not on_gpu:
        raise ModelError(
            f"--engine sglang: on a CPU SGLang knows no positions of a {LATENT} but yarn, found rope_type "
            f"{kind!r} in config.json; set 'yarn' (with a factor of 1 it scales nothing), {OTHERWISE}."
        )


def _positions(architecture: str, hf_config: Mapping[str, Any]) -> str:
    """How positions are scaled: "default" or "yarn", the only ones that SGLang computes."""
    rope = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind not in ("default", "yarn"):
        raise ModelError(
            f"--engine sglang: SGLang makes yarn of every scaling of a {architecture}'s positions, found "
            f"rope_type {kind!r} in config.json; take another engine."
        )
    return kind


def _check_flash(hf_config: Mapping[str, Any]) -> None:
    _positions(FLASH, hf_config)
    if hf_config.get("q_lora_rank") is None:
        raise ModelError(
            f"--engine sglang: of a {FLASH} SGLang loads compressed queries only, found no q_lora_rank "
            "in config.json; take another engine."
        )
    layers = hf_config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (hf_config["num_hidden_layers"] - 1)
    first = layers.count("dense")
    if first != hf_config.get("first_k_dense_replace") or "dense" in layers[first:]:
        declared = hf_config.get("first_k_dense_replace", "none")
        raise ModelError(
            f"--engine sglang: of a {FLASH} SGLang reads first_k_dense_replace of config.json, found "
            f"{declared}, but its mlp_layer_types are {layers}; make them agree, {OTHERWISE}."
        )
