"""What `rlcore plan` must know of GLM, from the values of a config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts, expert_facts, latent_facts


def glm4(config: Mapping[str, Any]) -> ModelFacts:
    """GLM-4: norms stand behind attention and MLP too."""
    return decoder_facts(config, sandwich=True)


def glm4_moe(config: Mapping[str, Any]) -> ModelFacts:
    """GLM-4.5 to 4.7."""
    return decoder_facts(config, experts=expert_facts(config, exact_router=True))


def glm4_moe_lite(config: Mapping[str, Any]) -> ModelFacts:
    """GLM-4.7-Flash, whose first layer is dense where `mlp_layer_types` does not say more."""
    dense = (config.get("mlp_layer_types") or ["dense"]).count("dense")
    experts = replace(expert_facts(config, exact_router=True), first_dense=dense)
    return decoder_facts(config, latent=latent_facts(config), experts=experts)


def glm5(config: Mapping[str, Any]) -> ModelFacts:
    """GLM-5 to 5.2: sparse latent attention and experts."""
    return decoder_facts(config, latent=latent_facts(config), experts=expert_facts(config, exact_router=True))
