"""One padded attention call for a decode step, instead of SGLang's one call for each running request."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend


def install() -> None:
    """Replaces the decode of SGLang's `torch_native` backend where no special case asks for its own."""
    one_by_one = TorchNativeAttnBackend._run_sdpa_forward_decode

    def decode(
        self,
        query,
        output,
        k_cache,
        v_cache,
        req_to_token,
        req_pool_indices,
        seq_lens,
        encoder_lens=None,
        scaling=None,
        enable_gqa=False,
        causal=False,
        is_cross_attn=False,
        sliding_window_size=None,
    ):
        windowed = sliding_window_size is not None and sliding_window_size > -1
        if encoder_lens is not None or is_cross_attn or windowed or k_cache.dtype != query.dtype:
            return one_by_one(
                self,
                query,
                output,
                k_cache,
                v_cache,
                req_to_token,
                req_pool_indices,
                seq_lens,
                encoder_lens,
                scaling,
                enable_gqa,
                causal,
                is_cross_attn,
                sliding_window_size,
            )
        longest = int(seq_lens.max())
        mask = torch.arange(longest) < seq_lens[:, None]
        place = req_to_token[req_pool_indices, :longest].masked_fill(~mask, 0)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query.unsqueeze(2),
            k_cache[place].transpose(1, 2),
            v_cache[place].transpose(1, 2),
            attn_mask=mask[:, None, None],
            scale=scaling,
            enable_gqa=enable_gqa,
        )
        output.copy_(attended.squeeze(2))
        return output

    TorchNativeAttnBackend._run_sdpa_forward_decode = decode
