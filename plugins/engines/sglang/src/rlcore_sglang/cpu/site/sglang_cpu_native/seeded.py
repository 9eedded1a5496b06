"""Per-request `sampling_seed` (`--enable-deterministic-inference`) without triton or sgl-kernel."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

import torch

MASK = 0xFFFFFFFF


def _rotated(x: torch.Tensor, bits: int) -> torch.Tensor:
    return ((x << bits) | (x >> (32 - bits))) & MASK


def _product(a: torch.Tensor, c: int) -> torch.Tensor:
    """A 32-bit product in int64, without overflow."""
    return ((a & 0xFFFF) * c + ((((a >> 16) * (c & 0xFFFF)) & 0xFFFF) << 16)) & MASK


def _mixed(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    h = _rotated(h ^ _product(_rotated(_product(k, 0xCC9E2D51), 15), 0x1B873593), 13)
    return (h * 5 + 0xE6546B64) & MASK


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (seed, position, column), as SGLang's kernel computes it: [rows, columns] in int64."""
    s = seed.view(torch.int64)[:, None]
    h = torch.zeros_like(s)
    rows, columns = positions.to(torch.int64)[:, None], col_indices.to(torch.int64)[None]
    for k in (s & MASK, (s >> 32) & MASK, rows & MASK, columns & MASK):
        h = _mixed(h, k)
    h = h ^ 16
    h = _product(h ^ (h >> 16), 0x85EBCA6B)
    h = _product(h ^ (h >> 13), 0xC2B2AE35)
    return h ^ (h >> 16)


def install() -> None:
    """Puts the hash in the kernel's place; the batch-invariant kernels do not exist here."""
    from sglang.kernels.ops.sampling import murmur_hash
    from sglang.srt import batch_invariant_ops
    from sglang.srt.layers import sampler

    murmur_hash.murmur_hash32 = sampler.murmur_hash32 = murmur_hash32
    batch_invariant_ops.enable_batch_invariant_mode = lambda *args, **kwargs: None
