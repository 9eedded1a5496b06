"""What this machine has, found out without torch where that can be."""

from importlib.util import find_spec
from pathlib import Path

_GPU_DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/dxg", "/dev/kfd")))
"""The devices of NVIDIA, of its Jetson boards, of Windows' Linux, and of AMD."""


def has_gpu() -> bool:
    """Whether there is a GPU of NVIDIA or AMD. A plugin may make its part the default on such a machine."""
    return any(device.exists() for device in _GPU_DEVICES)


def has_gpu_here() -> bool:
    """Whether this process may use a GPU: where it may not, a server that it starts may not either."""
    if not has_gpu():
        return False  # found out without torch, whose import takes seconds
    import torch

    return torch.cuda.is_available()


def has_gpu_for(module: str) -> bool:
    """Whether there is a GPU, and this interpreter has `module`, which needs one."""
    return has_gpu() and find_spec(module) is not None
