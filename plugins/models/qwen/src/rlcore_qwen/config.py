"""Settings of the bridge."""

from rlcore.config.base import Config


class QwenConfig(Config):
    """Qwen needs no settings: its config.json says all."""
