"""How a model family plugs into the trainer, and how its weights travel."""
