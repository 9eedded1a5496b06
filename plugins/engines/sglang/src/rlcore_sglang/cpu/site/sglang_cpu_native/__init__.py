"""A platform for SGLang's own out-of-tree mechanism: plain PyTorch on a CPU, no sgl-kernel, no triton."""


def activate() -> str:
    """The entry point `sglang.srt.platforms`: where the platform class is."""
    return "sglang_cpu_native.platform.CpuNativePlatform"
