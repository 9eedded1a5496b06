"""What `rlcore plan` must know of GLM, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore.plan.facts import Facts, decoder, experts_of


def glm4(config: Mapping[str, Any]) -> Facts:
    """GLM-4: norms stand behind attention and MLP too."""
    return decoder(config, sandwich=True)


def glm4_moe(config: Mapping[str, Any]) -> Facts:
    """GLM-4.5 to 4.7."""
    return decoder(config, experts=experts_of(config))
