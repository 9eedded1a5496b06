"""DeepSeek for rlcore."""
