"""Llama for rlcore."""
