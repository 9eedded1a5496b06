"""`TrainBatch`: samples as flat tensors, with columns that are not a fixed list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlcore.api.errors import PluginError

ROUTED_EXPERTS = "routed_experts"
"""int16 [sum(P_i + R_i), layers, K] of `TrainBatch.per_input`: the experts that the engine chose for each
token, by layer of the model; what stands in a layer without experts means nothing."""

_SHORT_RUN = 256
"""Tokens. Runs that are shorter on average are taken by an index for each token."""


class Columns(dict[str, Tensor]):
    """Columns by name. One that nobody gave is a `PluginError`, which says what there is."""

    def __missing__(self, name: str) -> Tensor:
        raise PluginError(
            f"The batch has no column '{name}', only {', '.join(sorted(self))}; name it in the `needs` of "
            "the part's config, or let the generator give it in Sample.extras."
        )


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """B samples, flattened without padding.

    `tokens` int64 [sum(P_i + R_i)]: prompt then response, sample after sample.
    `prompt_lengths`, `response_lengths` int64 [B].
    `per_token`: columns [sum(R_i)], one value per response token; `loss_mask` (float32, 0 or 1) and
    `weights` (float32, see `rlcore.learning.preparation`) are always among them once the batch is built.
    `per_sample`: columns [B]; `position` (int64, place in the whole batch), `group` and `rollout` (int64)
    are always there. `unit` (int64), where it is there: samples of one unit share a rank, a mini-batch and a
    micro-batch. `cost` (float64), where it is there: what ranks and micro-batches shall have equally much of,
    in place of tokens.
    `per_input`: columns [sum(P_i + R_i)], one entry for each of `tokens`; `ROUTED_EXPERTS` is the one that
    there may be. They stay on the rank of their samples.
    A column added by a plugin keeps its name; the first dimension is the only one that is sliced.
    """

    tokens: Tensor
    prompt_lengths: Tensor
    response_lengths: Tensor
    per_token: Mapping[str, Tensor] = field(default_factory=dict)
    per_sample: Mapping[str, Tensor] = field(default_factory=dict)
    per_input: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("per_token", "per_sample"):
            object.__setattr__(self, name, Columns(getattr(self, name)))

    def __len__(self) -> int:
        return int(self.prompt_lengths.numel())

    @property
    def lengths(self) -> Tensor:
        """P_i + R_i, int64 [B]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def costs(self) -> list[float]:
        """Of each sample, its share of the work: the column `cost`, or its tokens."""
        column = self.per_sample.get("cost", self.lengths)
        values: list[float] = column.tolist()
        return values

    @property
    def segments(self) -> Tensor:
        """The sample of each response token, int64 [sum(R_i)]."""
        return torch.repeat_interleave(
            torch.arange(len(self), device=self.response_lengths.device), self.response_lengths
        )

    def units(self) -> list[list[int]]:
        """The rows of each unit, in the order of their first rows; without `unit`, each sample alone."""
        if "unit" not in self.per_sample:
            return [[row] for row in range(len(self))]
        rows: dict[int, list[int]] = {}
        for row, unit in enumerate(self.per_sample["unit"].tolist()):
            rows.setdefault(unit, []).append(row)
        return list(rows.values())

    def with_columns(
        self, per_token: Mapping[str, Tensor] | None = None, per_sample: Mapping[str, Tensor] | None = None
    ) -> TrainBatch:
        """A copy with more (or replaced) columns."""
        return replace(
            self,
            per_token={**self.per_token, **(per_token or {})},
            per_sample={**self.per_sample, **(per_sample or {})},
        )

    def select(self, rows: Sequence[int]) -> TrainBatch:
        """The samples `rows`, in that order."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        of_inputs = _taker(self.lengths, index)
        of_responses = _taker(self.response_lengths, index)
        return TrainBatch(
            tokens=of_inputs(self.tokens),
            prompt_lengths=self.prompt_lengths[index],
            response_lengths=self.response_lengths[index],
            per_token={name: of_responses(column) for name, column in self.per_token.items()},
            per_sample={name: column[index] for name, column in self.per_sample.items()},
            per_input={name: of_inputs(column) for name, column in self.per_input.items()},
        )


def joined(parts: Sequence[TrainBatch]) -> TrainBatch:
    """The samples of all `parts`, one after another; these have the same columns."""
    if len(parts) == 1:
        return parts[0]

    def columns(kind: str) -> dict[str, Tensor]:
        tables = [getattr(part, kind) for part in parts]
        return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}

    return TrainBatch(
        tokens=torch.cat([part.tokens for part in parts]),
        prompt_lengths=torch.cat([part.prompt_lengths for part in parts]),
        response_lengths=torch.cat([part.response_lengths for part in parts]),
        per_token=columns("per_token"),
        per_sample=columns("per_sample"),
        per_input=columns("per_input"),
    )


def _taker(lengths: Tensor, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Takes the tokens of `rows` from a column of runs of `lengths`; runs that are side by side are one."""
    ends = torch.cumsum(lengths, 0)[rows]
    starts = ends - lengths[rows]
    is_first = torch.ones(len(rows), dtype=torch.bool)
    is_first[1:] = starts[1:] != ends[:-1]
    first = starts[is_first]
    runs = ends[is_first.roll(-1)] - first
    if int(runs.sum()) < _SHORT_RUN * len(runs):
        index = token_ranges(first, runs)
        return lambda column: column[index]
    # An index for each token of long runs would take longer, and more memory than the column.
    places = list(zip(first.tolist(), runs.tolist(), strict=True))
    return lambda column: torch.cat([column[:0], *(column.narrow(0, *place) for place in places)])


def token_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """`[s0, s0+1, …, s0+l0-1, s1, …]`: the flat indices of runs of tokens."""
    total = int(lengths.sum())
    offsets = torch.repeat_interleave(starts - (torch.cumsum(lengths, 0) - lengths), lengths)
    return torch.arange(total) + offsets
