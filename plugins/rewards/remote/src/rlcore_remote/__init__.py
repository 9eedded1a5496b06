"""Rewards from a server."""
