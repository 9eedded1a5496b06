"""Single-turn generation for rlcore."""
