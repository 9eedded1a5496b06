"""Corrections: weights for tokens that another policy, or another engine, has sampled."""
