"""A decoder whose rows are of several policies, each of which has a model of its own."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlcore_local.decoder import Decoder, PromptTokens


class PolicyDecoder:
    """A `decoder.Decoder`. The rows of a policy are in its decoder in the order that they have here."""

    def __init__(self, decoder: Decoder) -> None:
        """`decoder`: of the run's own policy."""
        self.decoders: dict[str, Decoder] = {"": decoder}
        """By the name of a policy."""
        self._rows: list[str] = []

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        places, parts = [], []
        scores: list[list[float] | None] = [None] * len(prompts)
        for name, own in _by_policy([prompt.adapter for prompt in prompts]):
            logits, scored = self.decoders[name].prefill([prompts[place] for place in own])
            for place, score in zip(own, scored, strict=True):
                scores[place] = score
            places += own
            parts.append(logits)
        self._rows += [prompt.adapter for prompt in prompts for _ in range(prompt.copies)]
        return _in_order(parts, places), scores

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if len(self.decoders) == 1:
            return self.decoders[""].decode(tokens, lengths)
        places, parts = [], []
        for name, own in _by_policy(self._rows):
            parts.append(self.decoders[name].decode(tokens[own], lengths[own]))
            places += own
        return _in_order(parts, places)

    def keep(self, order: Sequence[int]) -> None:
        within: dict[int, int] = {}
        for _, own in _by_policy(self._rows):
            within |= {row: place for place, row in enumerate(own)}
        for name in dict.fromkeys(self._rows):
            self.decoders[name].keep([within[row] for row in order if self._rows[row] == name])
        self._rows = [self._rows[row] for row in order]

    def refresh(self) -> None:
        for decoder in self.decoders.values():
            decoder.refresh()

    def clear(self) -> None:
        for decoder in self.decoders.values():
            decoder.clear()
        self._rows = []


def _by_policy(names: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each policy and the places of its members."""
    for name in dict.fromkeys(names):
        yield name, [place for place, other in enumerate(names) if other == name]


def _in_order(parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """The rows of all `parts`, each at its place."""
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([*parts])
    rows = torch.empty_like(joined)
    rows[torch.tensor(places, device=joined.device)] = joined
    return rows
