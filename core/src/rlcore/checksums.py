"""A digest of one tensor, the same on the trainer's and on the engine's side."""

import hashlib

import torch


def checksum(tensor: torch.Tensor) -> str:
    """A stable hexadecimal digest (32 characters) of a tensor's dtype, shape and values.

    Bit patterns are compared, not numbers: 0.0 and -0.0 differ, and so do fp32 and bf16 copies of a value.
    The device and the strides do not matter. Speed: BLAKE2b's, about 1 GB/s on one core.
    """
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    head = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".encode()
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
