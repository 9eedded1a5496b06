"""Prompts from files."""
