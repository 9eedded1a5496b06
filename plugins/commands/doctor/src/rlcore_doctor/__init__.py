"""The command `rlcore doctor`."""
