"""Sizes that several modules share."""

MOST_LOGITS = 1 << 25
"""The most logits that a trainer computes at once: 128 MiB in fp32, and as much for their gradient.

Of a larger micro-batch it computes one chunk at a time, and again in the backward pass.
"""

MOST_ON_HOST = 1 << 27
"""The same on a CPU, which has more memory than arithmetic."""

ROWS_AT_ONCE = 256
"""The fewest rows of such a chunk: with fewer, reading the output matrix would dominate."""
