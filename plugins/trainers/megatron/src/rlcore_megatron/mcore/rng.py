"""The random states of one rank: python, numpy, torch, and megatron's tracker for model-parallel regions."""

from typing import Any

from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

from rlcore_toolkit import random_states as plain_states, set_random_states as set_plain_states, set_seeds


def set_seed(seed: int) -> None:
    """Seed all of them; megatron's tracker derives different streams for the model-parallel ranks."""
    set_seeds(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def random_states() -> dict[str, Any]:
    """All of them, as tensors, numbers, strings and tuples."""
    return {**plain_states(), "tracker": dict(get_cuda_rng_tracker().get_states())}


def set_random_states(states: dict[str, Any]) -> None:
    """The inverse of `random_states`."""
    set_plain_states(states)
    get_cuda_rng_tracker().set_states(states["tracker"])
