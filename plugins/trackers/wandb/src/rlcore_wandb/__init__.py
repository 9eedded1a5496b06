"""Runs in Weights & Biases."""
