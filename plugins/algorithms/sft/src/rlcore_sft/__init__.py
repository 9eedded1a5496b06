"""Supervised fine-tuning on given responses."""
