"""CISPO: clipped importance weights."""
