"""What SGLang asks of a model's config.json and transformers does not, checked before a server is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.errors import ModelError

LATENT = "DeepseekV3ForCausalLM"
PUBLISHED: Mapping[str, Any] = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
"""Of `LATENT`: fields that SGLang reads without a default, and what transformers computes without reading
them. Every published model has them."""
OTHERWISE = "or take --engine local"


def check_model(hf_config: Mapping[str, Any], *, on_gpu: bool) -> None:
    """ModelError where SGLang would end as it loads the model, or compute another one than the trainer."""
    if LATENT not in (hf_config.get("architectures") or ()):
        return
    for name, value in PUBLISHED.items():
        if hf_config.get(name) != value:
            found = repr(hf_config[name]) if name in hf_config else "none"
            raise ModelError(
                f"--engine sglang: of a {LATENT} SGLang reads {name} of config.json, found {found}, expected "
                f"{value!r}; set it, {OTHERWISE}."
            )
    rope = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "yarn" and not on_gpu:
        raise ModelError(
            f"--engine sglang: on a CPU SGLang knows no positions of a {LATENT} but yarn, found rope_type "
            f"{kind!r} in config.json; set 'yarn' (with a factor of 1 it scales nothing), {OTHERWISE}."
        )
