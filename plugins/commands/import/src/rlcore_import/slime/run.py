"""The flags of one run of slime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcore import ConfigError, Registry

Settings = Mapping[str, Any]
PROMPT_TOKENS = 1024
"""Longest prompt where slime's run bounds none: as long as rlcore's own default."""


@dataclass(frozen=True)
class Run:
    """The flags of one run, without their dashes. `entry`: train.py or train_async.py, if it was named."""

    flags: Mapping[str, tuple[str, ...]]
    entry: str
    registry: Registry

    def has(self, name: str) -> bool:
        """Whether `--name` is given."""
        return name in self.flags

    def text(self, name: str, default: str = "") -> str:
        """The first value of `--name`."""
        return (self.flags.get(name) or (default,))[0]

    def number(self, name: str, default: int) -> int:
        """The same as an integer. ConfigError."""
        text = self.text(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"--{name}: found {text!r}, expected an integer.") from None

    def real(self, name: str, default: float) -> float:
        """The same as a number. ConfigError."""
        text = self.text(name, str(default))
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"--{name}: found {text!r}, expected a number.") from None

    @property
    def trains_on_given(self) -> bool:
        """Supervised fine-tuning: nothing is generated."""
        return self.text("loss-type") == "sft_loss"

    @property
    def ranks(self) -> int:
        return self.number("actor-num-nodes", 1) * self.number("actor-num-gpus-per-node", 8)

    @property
    def estimator(self) -> str:
        return self.text("advantage-estimator", "grpo")

    @property
    def max_tokens(self) -> int:
        """Of a micro-batch, over all context-parallel ranks."""
        return self.number("max-tokens-per-gpu", 8192) * self.number("context-parallel-size", 1)

    @property
    def prompt_tokens(self) -> int:
        return self.number("rollout-max-prompt-len", PROMPT_TOKENS)

    @property
    def samples(self) -> int:
        return self.number("rollout-batch-size", 1) * self.number("n-samples-per-prompt", 1)
