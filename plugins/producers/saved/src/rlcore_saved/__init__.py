"""The producer for rollouts that a run has saved."""
