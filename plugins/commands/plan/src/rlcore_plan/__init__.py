"""What a run needs on each rank, from a model's config.json alone: no torch, no process, no GPU."""
