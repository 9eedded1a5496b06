"""Environments of other packages, as `Environment`."""
