"""Checkpoints, whole or one tensor at a time."""
