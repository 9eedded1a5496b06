"""rlcore: reinforcement-learning post-training of language models, made of plugins."""

__version__ = "0.1.0"
