"""A trainer of one rank on plain transformers."""
