"""Runs in TensorBoard."""
