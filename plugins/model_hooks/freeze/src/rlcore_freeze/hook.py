"""The model hook `freeze`."""

import re

from rlcore import ConfigError, ModelHook, ModelView
from rlcore_freeze.config import FreezeConfig

FLAG = "--model-hook.freeze.pattern"
SHOWN = 8
"""Names in a refusal."""


class Freeze(ModelHook):
    """Takes parameters out of the training."""

    def __init__(self, config: FreezeConfig) -> None:
        self._config = config

    def built(self, model: ModelView) -> None:
        """Raises `ConfigError` for a pattern that is nowhere found, or where nothing is left to train."""
        frozen = self.frozen(model.names)
        for name, parameter in model.parameters.items():
            if name in frozen:  # others may be frozen already: the base of an adapter, an indexer
                parameter.requires_grad_(False)

    def frozen(self, names: frozenset[str]) -> frozenset[str]:
        """Those of `names`, all of the model's, that stay as they are."""
        patterns = self._config.pattern
        for pattern in patterns:
            if not any(re.search(pattern, name) for name in names):
                some = ", ".join(sorted(names)[:SHOWN])
                raise ConfigError(
                    f"{FLAG}: found {pattern!r}, which is in none of the {len(names)} names ({some} …)."
                )
        matched = {name for name in names if any(re.search(pattern, name) for pattern in patterns)}
        frozen = names - matched if self._config.invert else frozenset(matched)
        if frozen == names:
            raise ConfigError(f"{FLAG}: found {', '.join(patterns)}, which leaves nothing to train.")
        return frozen
