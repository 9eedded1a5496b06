"""Keep what lives for the whole of a process out of the garbage collector's rounds."""

import gc


def settle_heap() -> None:
    """Call it once, when a process has started: later collections walk only what came after.

    torch, transformers and Ray leave some million objects behind. A full collection takes 40 ms to find
    nothing among them, and the objects of one step are enough to cause it.
    """
    gc.collect()
    gc.freeze()
