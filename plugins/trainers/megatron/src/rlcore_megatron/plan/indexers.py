"""Bytes that sparse attention keeps for the backward pass beyond latent attention.

Shapes: T queries of a rank, S keys that each sees, K that it gets; h heads of an indexer, of d numbers.
"""

from rlcore import IndexFacts, ModelFacts

FLOAT, LONG = 4, 8


def seen_keys(tokens: int, longest: int | None, context: int) -> int:
    """S on average. `tokens`: of a rank; `longest`: of a sample, None: it fills a pack.

    Context-parallel ranks cut a sample of L tokens into runs of R, each of which sees the keys up to its own
    end: (L + R) / 2 on average.
    """
    whole, run = context * tokens, tokens // 2
    keys = whole if longest is None else min(longest, whole)
    return (keys + run) // 2 if context > 1 and keys > run else keys


def masks(index: IndexFacts, tokens: int, keys: int, size: int) -> int:
    """What is added to the scores, T · S numbers of `size` bytes, and the order of the queries.

    None where a query sees no more keys than it gets.
    """
    return tokens * (keys * size + LONG) if keys > index.top else 0


def taught(facts: ModelFacts, index: IndexFacts, keys: int, size: int) -> int:
    """Bytes of one query of an indexer that learns.

    In fp32: products of all heads and their sum for each key, queries, a weight a head, and one key; the key
    before its norm, and what queries and weights are made of. Of a chosen key: its place, whether it is one,
    its share of the attention, and its log-probability.
    """
    assert facts.latent is not None, "an indexer is of latent attention"
    scores = (index.heads + 1) * keys * FLOAT
    vectors = index.heads * (index.size + 1) * FLOAT + index.size * (FLOAT + size)
    inputs = facts.latent.query * size + (0 if size == FLOAT else facts.hidden * FLOAT)
    rotated = 2 * facts.latent.rotated * size  # cosine and sine
    return scores + vectors + inputs + rotated + min(index.top, keys) * (LONG + 2 * FLOAT + 1)
