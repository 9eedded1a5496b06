"""The command `rlcore new`."""
