"""Procedural tasks."""
