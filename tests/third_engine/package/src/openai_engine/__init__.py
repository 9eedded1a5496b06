"""An engine of somebody else."""
