"""What this package offers to rlcore."""
