"""Settings of the bridge."""

from rlcore import Config


class QwenConfig(Config):
    """Qwen needs no settings: its config.json says all."""
