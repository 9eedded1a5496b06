"""Sampling seeds that depend on what is sampled, never on when."""

from hashlib import blake2b


def sample_seed(run_seed: int, prompt_id: str, index: int, attempt: int, draw: int) -> int:
    """A seed below 2**31 for sample `index` of the prompt's draw number `draw`, on its try `attempt`."""
    key = f"{run_seed}\x1f{prompt_id}\x1f{draw}\x1f{index}\x1f{attempt}"
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big") >> 1
