"""The CPU platform: makes megatron-core and mbridge run where there is no GPU.

Both libraries name CUDA in their source: device literals, `torch.cuda` calls, tensor type names. `install`
registers an import hook that rewrites those places while the modules are imported (`rewrite`) and points them
to a stand-in for `torch.cuda` (`cuda`). torch itself stays as it is, no file is edited, and where a GPU is
found nothing happens at all.
"""

import sys

PACKAGES = ("megatron.core", "mbridge")
"""What is rewritten, with everything below."""


def needed() -> bool:
    """Whether this machine has no GPU that torch can use."""
    import torch

    return not torch.cuda.is_available()


def install() -> bool:
    """Register the import hook where it is needed; returns whether it is in place. Idempotent.

    Must come before the first import of `PACKAGES`: what is already imported cannot be rewritten
    (RuntimeError).
    """
    if not needed():
        return False
    from rlcore_megatron.cpu.rewrite import Finder

    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return True
    late = sorted(name for name in sys.modules if name in PACKAGES)
    if late:
        raise RuntimeError(
            f"{late[0]} was imported before rlcore_megatron.cpu.install(): import rlcore_megatron.mcore first"
        )
    sys.meta_path.insert(0, Finder(PACKAGES))
    return True
