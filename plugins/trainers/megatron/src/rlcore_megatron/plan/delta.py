"""Bytes that a gated delta net keeps for the backward pass, tensor by tensor, as the trainer computes it."""

from dataclasses import dataclass

from rlcore import DeltaFacts

FLOAT = 4
CHUNK = 64
"""Tokens of a chunk, whose products of all pairs exist at once."""
HALVINGS = CHUNK.bit_length() - 1
"""How often a chunk is halved where each channel fades for itself."""


def channels_of(delta: DeltaFacts) -> int:
    """Channels of the convolution: queries, keys and values."""
    return 2 * delta.key_heads * delta.key + delta.value_heads * delta.value


@dataclass(frozen=True, kw_only=True)
class DeltaBytes:
    """Bytes of one token on a rank. `core`: of convolution and recurrence; `inputs`: what they start from;
    `again`: of `core`, beside these.

    `gates`: the projection's output, which fp32 gates keep as a whole. `rest`: of the norm of the values with
    its gates, and of what the output matrix reads. `scoring`: the most at one time without a backward pass.
    """

    core: float
    again: float
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
        channel_rates = keys * key if delta.rank else heads
        rates = heads * size + 2 * channel_rates * FLOAT
        chunked = 2 * keys * key + values + heads  # queries, keys, values and beta
        pairs = (4 * heads + 2 * keys) * CHUNK  # of a chunk: decays, β·kk, the system, inside; kk, qk
        if delta.rank:
            # both products and the system; queries and keys in one, keys once more; and for each halving, of
            # half of the tokens, a decay and what it gives of queries and keys, of the others of the keys
            pairs = 3 * heads * CHUNK + (6 + 5 * HALVINGS) * heads * key // 2
        copied = 2 * heads * key if heads > keys else 0  # queries and keys for each value head
        # β·k, what asks the state, what is written to it; two decays
        grown = 3 * heads * key + 2 * channel_rates
        solved = values + heads * key + values  # the system's solution, and the values after correction
        states = values * key / CHUNK  # one for each chunk
        inner = chunked + pairs + copied + grown + solved + states
        projected = channels + (channel_rates - heads if delta.rank else values)
        # while the system is solved: its right side is copied; the arguments are there as well
        solving = 2 * chunked + 3 * heads * CHUNK + copied // 2 + 3 * (values + heads * key)
        if delta.rank:  # while the last halves are joined: their products, and what these are made of
            solving = 2 * chunked + 4 * channel_rates + 11 * heads * CHUNK // 2 + 6 * heads * key
        # norm's input and deviation, normed values, these weighted, SiLU of the gates, gated values
        normed = values * (2 * FLOAT + 3 * size) + heads * FLOAT
        if delta.rank:  # all of it in fp32, and a sigmoid keeps what it gives
            normed = values * (4 * FLOAT + size) + heads * FLOAT
        return cls(
            core=convolved + units + rates + inner * FLOAT,
            again=convolved - (channels * size if delta.rank else 0) + units + rates + inner * FLOAT,
            inputs=0 if is_full and not delta.rank else (projected + 2 * heads) * size,
            gates=2 * delta.rank * size if delta.rank else projected * FLOAT if is_full else 0,
            rest=normed if is_full or delta.rank else normed + values * FLOAT,  # a copy of the gates
            scoring=solving * FLOAT + (channels + projected + 2 * heads) * size,
        )
