"""The sizes of a model (`rlcore.ModelFacts`), read from its config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import EXPERT_FIELDS, DeltaFacts, ExpertFacts, IndexFacts, LatentFacts, ModelFacts


def decoder_facts(
    config: Mapping[str, Any],
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    sinks: bool = False,
    qk_norm: bool = False,
    joint_qk_norm: bool = False,
    sandwich: bool = False,
    latent: LatentFacts | None = None,
    experts: ExpertFacts | None = None,
    delta: DeltaFacts | None = None,
    output_gate: bool = False,
    zero_centered: bool = False,
    gelu: bool = False,
) -> ModelFacts:
    """The facts of a decoder, from the names in config.json that most families share.

    `qkv_bias`, `output_bias`, `sinks`, `qk_norm`: the family has them although config.json does not say so.
    `joint_qk_norm`: one of them is over all heads. KeyError if a value is missing.
    """
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelFacts(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        width=int(config["intermediate_size"]),
        heads=heads,
        groups=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias or bool(config.get("attention_bias", False)),
        output_bias=output_bias,
        sinks=sinks,
        qk_norm=qk_norm or bool(config.get("use_qk_norm", False)),
        joint_qk_norm=joint_qk_norm,
        sandwich=sandwich,
        latent=latent,
        experts=experts,
        delta=delta,
        output_gate=output_gate,
        zero_centered=zero_centered,
        gelu=gelu,
    )


def delta_facts(config: Mapping[str, Any]) -> DeltaFacts:
    """The facts of gated delta nets. Raises as `decoder_facts`."""
    count, every = int(config["num_hidden_layers"]), int(config.get("full_attention_interval") or 4)
    kinds = config.get("layer_types") or [
        "linear_attention" if (number + 1) % every else "full_attention" for number in range(count)
    ]
    return DeltaFacts(
        layers=frozenset(number for number, kind in enumerate(kinds) if kind == "linear_attention"),
        key_heads=int(config["linear_num_key_heads"]),
        value_heads=int(config["linear_num_value_heads"]),
        key=int(config["linear_key_head_dim"]),
        value=int(config["linear_value_head_dim"]),
        taps=int(config["linear_conv_kernel_dim"]),
    )


def latent_facts(config: Mapping[str, Any]) -> LatentFacts:
    """The facts of latent attention, with indexers where config.json has some. Raises as `decoder_facts`."""
    layers, index = indexed_layers(config), None
    if layers:
        heads, size, top = (int(config[f"index_{name}"]) for name in ("n_heads", "head_dim", "topk"))
        index = IndexFacts(heads=heads, size=size, top=top, layers=layers)
    return LatentFacts(
        query=int(config.get("q_lora_rank") or 0),
        key_value=int(config["kv_lora_rank"]),
        unrotated=int(config["qk_nope_head_dim"]),
        rotated=int(config["qk_rope_head_dim"]),
        value=int(config["v_head_dim"]),
        index=index,
    )


def indexed_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """The layers whose sparse attention has an indexer; the others take the keys that the one before chose.

    None where the attention is not sparse. GLM-5.2 names them in one of three ways.
    """
    if not config.get("index_topk"):
        return frozenset()
    layers = range(int(config["num_hidden_layers"]))
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    if kinds:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind[0] in "fF")
    step, offset = max(config.get("index_topk_freq") or 1, 1), config.get("index_skip_topk_offset", 2)
    return frozenset(layer for layer in layers if max(layer - offset + 1, 0) % step == 0)


def expert_facts(
    config: Mapping[str, Any], *, exact_router: bool = False, biased: bool = False, joint: bool = False
) -> ExpertFacts:
    """The facts of a mixture of experts. Raises as `decoder_facts`."""
    # transformers 5 writes another name than the published configs have
    named = next((name for name in EXPERT_FIELDS if name in config), EXPERT_FIELDS[0])
    width, shared = expert_width(config), config.get("shared_expert_intermediate_size")
    return ExpertFacts(
        count=int(config[named]),
        active=int(config["num_experts_per_tok"]),
        width=width,
        shared=int(shared or width * int(config.get("n_shared_experts") or 0)),
        shared_gate=bool(shared),
        first_dense=int(config.get("first_k_dense_replace") or 0),
        exact_router=exact_router,
        biased=biased,
        joint=joint,
    )


def is_decoder(architecture: str) -> bool:
    """Whether it is a sequence classifier that transformers makes of a decoder."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification

    known = getattr(transformers, architecture, None)
    return isinstance(known, type) and issubclass(known, GenericForSequenceClassification)


def expert_width(config: Mapping[str, Any]) -> int:
    """The inner size of an expert: that of every MLP where config.json has no name of its own for it."""
    return int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
