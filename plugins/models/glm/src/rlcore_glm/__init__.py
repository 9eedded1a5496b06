"""GLM for rlcore."""
