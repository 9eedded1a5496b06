"""Checkpoint folders: written whole or not at all, and read without running code in them."""
