"""Bytes that a gated delta net keeps for the backward pass, tensor by tensor, as the trainer computes it."""

from dataclasses import dataclass

from rlcore import DeltaFacts

FLOAT = 4
CHUNK = 64
"""Tokens of a chunk, whose products of all pairs exist at once."""


def channels_of(delta: DeltaFacts) -> int:
    """Channels of the convolution: queries, keys and values."""
    return 2 * delta.key_heads * delta.key + delta.value_heads * delta.value


@dataclass(frozen=True, kw_only=True)
class DeltaBytes:
    """Bytes of one token on a rank. `core`: of convolution and recurrence; `inputs`: what they start from.

    `gates`: the projection's output, which fp32 gates keep as a whole. `rest`: of the norm of the values with
    its gates, and of what the output matrix reads. `scoring`: the most at one time without a backward pass.
    """

    core: float
    inputs: int
    gates: int
    rest: int
    scoring: int

    @classmethod
    def of(cls, delta: DeltaFacts, tensor: int, size: int) -> "DeltaBytes":
        """`tensor`: ranks that divide the heads. `size`: bytes of a number of the parameters' dtype."""
        keys, heads = delta.key_heads // tensor, delta.value_heads // tensor
        key, values, channels = delta.key, heads * delta.value, channels_of(delta) // tensor
        is_full = size == FLOAT
        # each tap's tokens, what they are multiplied by, and what SiLU reads
        convolved = channels * size * (delta.taps + 1)
        # queries and keys in fp32 before they are of length 1, and their lengths; two rates of a head
        units = (channels if is_full else 2 * keys * key) * FLOAT + 2 * keys * FLOAT
        rates = heads * (size + 2 * FLOAT)
        chunked = 2 * keys * key + values + heads  # queries, keys, values and beta
        pairs = (4 * heads + 2 * keys) * CHUNK  # of a chunk: decays, β·kk, the system, inside; kk, qk
        copied = 2 * heads * key if heads > keys else 0  # queries and keys for each value head
        grown = 3 * heads * key + 2 * heads  # β·k, what asks the state, what is written to it; two decays
        solved = values + heads * key + values  # the system's solution, and the values after correction
        states = values * key / CHUNK  # one for each chunk
        inner = chunked + pairs + copied + grown + solved + states
        projected = channels + values
        # while the system is solved: it and its right side are copied; the arguments are there as well
        solving = 2 * chunked + pairs + copied // 2 + 3 * (values + heads * key)
        # norm's input and deviation, normed values, these weighted, SiLU of the gates, gated values
        normed = values * (2 * FLOAT + 3 * size) + heads * FLOAT
        return cls(
            core=convolved + units + rates + inner * FLOAT,
            inputs=0 if is_full else (projected + 2 * heads) * size,
            gates=projected * FLOAT if is_full else 0,
            rest=normed if is_full else normed + values * FLOAT,  # a copy of the gates
            scoring=solving * FLOAT + (channels + projected + 2 * heads) * size,
        )
