"""Callbacks that watch one metric."""
