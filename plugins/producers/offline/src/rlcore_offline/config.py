"""The config of the producer, which says which runs it suits."""

from collections.abc import Sequence
from typing import ClassVar

from rlcore import ProducerConfig, Prompt, RunConfig, Tokenizer, TrainsOn


class OfflineConfig(ProducerConfig):
    """It has no settings."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES, TrainsOn.PAIRS})

    def check_prompts(self, prompts: Sequence[Prompt], tokenizer: Tokenizer, run: RunConfig) -> None:
        """Encodes the responses of the first ones."""
        from rlcore_offline.responses import ResponseEncoder

        ResponseEncoder.of(tokenizer, run).check(prompts)
