"""Sizes that more than one place must know, in a module that imports nothing."""

MOST_LOGITS = 1 << 25
"""Logits of a micro-batch on one rank that are made whole: 128 MiB in fp32, and as much for their gradient.

Of more, a trainer makes a chunk at a time, and again in the backward pass.
"""

ROWS_AT_ONCE = 256
"""The least rows of such a chunk: with fewer, the output matrix is read too often."""
