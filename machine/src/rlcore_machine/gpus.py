"""What the makers of GPUs say of them."""

PEAK_TFLOPS = (
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H100 PCIe", 756.5),
    ("H100 NVL", 835.5),
    ("H100", 989.4),
    ("H800", 989.4),
    ("H20", 148.0),
    ("GH200", 989.4),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.05),
    ("L40", 181.05),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
)
"""Part of a device's name, and its maker's figure for dense bf16 products. The first match counts."""


def peak_tflops(device: str) -> float | None:
    """The figure for a device by its name. None: a CPU, or a device that is not in the table."""
    return next((peak for name, peak in PEAK_TFLOPS if name in device), None)
