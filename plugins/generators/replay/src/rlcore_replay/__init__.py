"""Saved samples as rollouts, for rlcore."""
