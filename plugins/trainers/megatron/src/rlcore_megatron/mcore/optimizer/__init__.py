"""Optimizers, and their wrappers."""
