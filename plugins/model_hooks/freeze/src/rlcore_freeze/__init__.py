"""Train only some of a model's parameters."""
