"""The command line of rlcore."""

__version__ = "0.1.0"
