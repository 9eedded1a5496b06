"""Gemma for rlcore."""
