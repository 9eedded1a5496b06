"""The memory model of this trainer, for `rlcore plan`."""
