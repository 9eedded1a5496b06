"""The metrics and samples of runs as JSON lines."""
