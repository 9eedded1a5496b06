"""Checks what a run needs before it starts, and keeps what was found."""
