"""Packs of sequences: how samples are put together, and divided over context-parallel ranks."""
