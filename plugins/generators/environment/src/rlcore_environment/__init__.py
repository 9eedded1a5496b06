"""Environments as generators, for rlcore."""
