"""Mistral on megatron-core."""

from rlcore_megatron.mcore.bridges.bridge import MBridge


class MyPlugin(MBridge):
    """Layers and names are those of Llama without biases; `MBridge` refuses sliding windows."""
