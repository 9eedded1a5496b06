"""The sizes of a model (`rlcore.ModelFacts`), read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore import EXPERT_FIELDS, ExpertFacts, LatentFacts, ModelFacts, expert_width


def decoder_facts(
    config: Mapping[str, Any],
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    joint_qk_norm: bool = False,
    sandwich: bool = False,
    latent: LatentFacts | None = None,
    experts: ExpertFacts | None = None,
) -> ModelFacts:
    """The facts of a decoder, from the names in config.json that most families share.

    `qkv_bias`, `qk_norm`: the family has them although config.json does not say so. `joint_qk_norm`: one of
    them is over all heads. KeyError if a value is missing.
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
        qk_norm=qk_norm or bool(config.get("use_qk_norm", False)),
        joint_qk_norm=joint_qk_norm,
        sandwich=sandwich,
        latent=latent,
        experts=experts,
    )


def latent_facts(config: Mapping[str, Any]) -> LatentFacts:
    """The facts of latent attention. Raises as `decoder_facts`."""
    return LatentFacts(
        query=int(config.get("q_lora_rank") or 0),
        key_value=int(config["kv_lora_rank"]),
        unrotated=int(config["qk_nope_head_dim"]),
        rotated=int(config["qk_rope_head_dim"]),
        value=int(config["v_head_dim"]),
    )


def expert_facts(config: Mapping[str, Any], *, exact_router: bool = False) -> ExpertFacts:
    """The facts of a mixture of experts. Raises as `decoder_facts`."""
    # transformers 5 writes another name than the published configs have
    named = next((name for name in EXPERT_FIELDS if name in config), EXPERT_FIELDS[0])
    width = expert_width(config)
    return ExpertFacts(
        count=int(config[named]),
        active=int(config["num_experts_per_tok"]),
        width=width,
        shared=width * int(config.get("n_shared_experts") or 0),
        first_dense=int(config.get("first_k_dense_replace") or 0),
        exact_router=exact_router,
    )


def is_decoder(architecture: str) -> bool:
    """Whether it is a sequence classifier that transformers makes of a decoder."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification

    known = getattr(transformers, architecture, None)
    return isinstance(known, type) and issubclass(known, GenericForSequenceClassification)
