"""The platform class that SGLang asks for its defaults."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class CpuNativePlatform(CpuDeviceMixin, SRTPlatform):
    """Plain PyTorch on a CPU: no graphs, no pinned memory."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device=None):
        return False

    def get_default_attention_backend(self):
        return "torch_native"

    def get_compile_backend(self, mode=None):
        return "eager"

    def apply_server_args_defaults(self, server_args):
        from sglang.srt.arg_groups import choices

        if "torch_native" not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
            choices.add_deterministic_attention_backend_choices(["torch_native"])
        server_args.attention_backend = server_args.attention_backend or "torch_native"
        server_args.sampling_backend = "pytorch"
        server_args.disable_overlap_schedule = True

    def init_backend(self):
        # One thread finds out about the processor for all vector functions of MKL (rlcore_machine.threads).
        torch.ones(1).cos()
        from sglang.srt.mem_cache.pool_host import common

        from sglang_cpu_native import decode, latent, seeded, unpinned

        seeded.install()
        decode.install()
        latent.install()
        unpinned.install()
        # --enable-return-routed-experts pins its host buffer through cudart; plain memory serves.
        common._cuda_host_register = lambda *args, **kwargs: None
