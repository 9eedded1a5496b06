"""Mistral on megatron-core."""

from typing import Any

from rlcore_megatron.mcore.bridges.bridge import MBridge


class MyPlugin(MBridge):
    """Layers and names are those of Llama without biases; `MBridge` refuses sliding windows."""

    def family(self, model_type: str) -> type[Any]:
        """The class of mbridge that maps config, names and layouts."""
        from mbridge.models.llama import LLaMABridge  # type: ignore[import-untyped]  # it has no types

        bridge: type[Any] = LLaMABridge
        return bridge
