"""MiniMax for rlcore."""
