"""`MegatronTrainer`: what core asks of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.config.base import Config


class MegatronTrainer:
    """Kind `trainer`. megatron-core is imported where it is needed, not before."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def check_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields of megatron-core's config classes, in their types."""
        from rlcore_megatron.mcore import fields as known

        return known.check_fields(fields)
