"""A digest of a tensor that trainer and engine compute alike."""

import ctypes

import torch
import xxhash


def checksum(tensor: torch.Tensor) -> str:
    """A stable hexadecimal digest (32 characters) of a tensor's dtype, shape and values.

    Bit patterns are compared, not numbers: 0.0 and -0.0 differ, and so do fp32 and bf16 copies of a value.
    The device and the strides do not matter. Speed: that of XXH3, 8 GB/s on one core.
    """
    digest = Checksum(tensor)
    digest.add(tensor)
    return digest.value


class Checksum:
    """`checksum` of a tensor whose values come in parts. `whole`: a tensor of its dtype and shape."""

    def __init__(self, whole: torch.Tensor) -> None:
        head = f"{str(whole.dtype).removeprefix('torch.')}{list(whole.shape)}".encode()
        self._digest = xxhash.xxh3_128(head)

    def add(self, part: torch.Tensor) -> None:
        """Add the next values, in the order of the whole tensor."""
        flat = part.detach().contiguous().cpu().reshape(-1)
        # not by numpy(), whose arrays forbid torch for good to give the memory back (`Offload` does)
        if flat.numel():
            self._digest.update((ctypes.c_uint8 * flat.nbytes).from_address(flat.data_ptr()))

    @property
    def value(self) -> str:
        """The digest of all parts so far."""
        return self._digest.hexdigest()
