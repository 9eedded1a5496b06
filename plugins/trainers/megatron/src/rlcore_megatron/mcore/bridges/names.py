"""mbridge's base of name maps, for bridges: on a CPU `rlcore_megatron.mcore` must be imported before it."""

from mbridge.core import LLMBridge

__all__ = ["LLMBridge"]
