"""Prompts for environments that begin by a seed."""

from __future__ import annotations

from rlcore import DataError, Messages, Prompt, Prompts
from rlcore_environment.config import EpisodesConfig


class Episodes:
    """The same text with `metadata["seed"]`, one seed a prompt; the last ones are held out."""

    def __init__(self, config: EpisodesConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """Raises `DataError` where all seeds are held out."""
        config = self._config
        if config.held_out >= config.size:
            raise DataError(f"--source.held-out: found {config.held_out}, expected fewer than --source.size.")
        text: str | Messages = ({"role": "user", "content": config.text},) if config.chat else config.text
        made = [
            Prompt(prompt_id=f"episode:{seed}", text=text, metadata={"seed": seed})
            for seed in range(config.first_seed, config.first_seed + config.size)
        ]
        kept = config.size - config.held_out
        return Prompts(train=made[:kept], held_out={"episodes": made[kept:]})
