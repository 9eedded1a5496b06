"""What this machine has, found out without torch."""

from pathlib import Path

_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def has_gpu() -> bool:
    """Whether there is a GPU of NVIDIA or AMD. A plugin may make its part the default on such a machine."""
    return any(device.exists() for device in _GPU_DEVICES)
