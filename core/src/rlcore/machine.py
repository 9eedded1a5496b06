"""What this machine has, as far as it can be told without torch."""

from pathlib import Path

_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def has_gpu() -> bool:
    """Whether there is a device of NVIDIA or AMD: a plugin's record may be the default of such a machine."""
    return any(device.exists() for device in _GPU_DEVICES)
