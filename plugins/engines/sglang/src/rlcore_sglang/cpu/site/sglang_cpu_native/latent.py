"""Latent attention (DeepSeek) in the form that SGLang's `torch_native` backend can compute."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod


def install() -> None:
    """Registers SGLang's own absorbed form for `torch_native`, in prefill as in decode.

    SGLang registers none for it and would take that of triton, which expands keys and values in a prefill,
    where `torch_native` reads them from the cache, and that holds latents.
    """
    AttentionBackendRegistry.register("torch_native", lambda attention, batch: AttnForwardMethod.MLA)
