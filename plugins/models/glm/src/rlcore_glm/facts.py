"""What `rlcore plan` must know of GLM, from the values of a config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlcore.facts import Facts, decoder, experts_of, latent_of


def glm4(config: Mapping[str, Any]) -> Facts:
    """GLM-4: norms stand behind attention and MLP too."""
    return decoder(config, sandwich=True)


def glm4_moe(config: Mapping[str, Any]) -> Facts:
    """GLM-4.5 to 4.7."""
    return decoder(config, experts=experts_of(config))


def glm4_moe_lite(config: Mapping[str, Any]) -> Facts:
    """GLM-4.7-Flash, whose first layer is dense where `mlp_layer_types` does not say more."""
    dense = (config.get("mlp_layer_types") or ["dense"]).count("dense")
    experts = replace(experts_of(config), first_dense=dense)
    return decoder(config, latent=latent_of(config), experts=experts)
