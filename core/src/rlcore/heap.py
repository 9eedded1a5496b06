"""Keep objects that live as long as the process out of garbage collections."""

import gc


def settle_heap() -> None:
    """Call it once, after the imports of a process. Later collections look only at newer objects.

    The imports of torch, transformers and Ray create about a million objects. A full collection takes 40 ms
    to look through them in vain, and the objects of a single step can trigger one.
    """
    gc.collect()
    gc.freeze()
