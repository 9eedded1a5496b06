"""Qwen2 and Qwen3 for rlcore."""
