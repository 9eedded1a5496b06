"""Prompts: where they come from, the order in which they are drawn, and how they become tokens."""
