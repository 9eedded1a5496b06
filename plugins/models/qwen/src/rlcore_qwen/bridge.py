"""Qwen2 and Qwen3, dense, on megatron-core."""

from typing import Any

from transformers import PretrainedConfig

from rlcore.errors import ModelError
from rlcore.megatron.bridge import MBridge


class QwenBridge(MBridge):
    """mbridge has both families right, but for what `check` refuses."""

    def family(self, model_type: str) -> type[Any]:
        from mbridge.models import Qwen2Bridge, Qwen3Bridge

        families: dict[str, type[Any]] = {"qwen2": Qwen2Bridge, "qwen3": Qwen3Bridge}
        if model_type not in families:
            raise ModelError(
                f"{self.path}: model_type {model_type!r} is not one of this bridge ({', '.join(families)})."
            )
        return families[model_type]

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if getattr(hf_config, "use_sliding_window", False):
            raise ModelError(f"{self.path}: use_sliding_window is not supported.")
        if hf_config.model_type == "qwen3" and getattr(hf_config, "attention_bias", False):
            raise ModelError(f"{self.path}: attention_bias is not supported for Qwen3.")
