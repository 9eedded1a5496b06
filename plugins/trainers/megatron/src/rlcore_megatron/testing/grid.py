"""A grid of configs in which each pair of choices occurs, without every combination of them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Choice = Mapping[str, Any]
"""Fields of a config that are set together."""


def pairwise(axes: Mapping[str, Sequence[Choice]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of configs that take one choice of every axis; each pair of choices occurs in one.

    Deterministic and greedy: the first config takes the first choices, each further one those of all
    combinations that bring the most pairs that were not yet seen. A name lists the places of the choices.
    """
    spaces = [range(len(choices)) for choices in axes.values()]
    if len(spaces) == 1:
        spaces.append(range(1))  # an axis alone: its choices are the pairs
    unseen = {pair for places in itertools.product(*spaces) for pair in _pairs(places)}
    while unseen:
        best = max(itertools.product(*spaces), key=lambda places: len(unseen & _pairs(places)))
        unseen -= _pairs(best)
        fields: dict[str, Any] = {}
        for choices, place in zip(axes.values(), best, strict=False):
            fields.update(choices[place])
        yield " ".join(f"{axis}{place}" for axis, place in zip(axes, best, strict=False)), fields


def _pairs(places: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(places), 2))


TIED: Sequence[Choice] = ({"tie_word_embeddings": False}, {"tie_word_embeddings": True})

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
ROPES: Sequence[Choice] = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    {"rope_parameters": _YARN},
    {"rope_parameters": {**_YARN, "attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0}},
)

HEADS: Sequence[Choice] = (
    {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
    {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8},
)
"""For a hidden size of 48: as many as it gives, wider and narrower heads; three ratios of grouped queries."""
