"""What `rlcore plan` must know of DeepSeek, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore.facts import Facts, decoder, experts_of, latent_of


def deepseek_v3(config: Mapping[str, Any]) -> Facts:
    """DeepSeek-V3, V3.1 and R1: latent attention and experts."""
    return decoder(config, latent=latent_of(config), experts=experts_of(config))
