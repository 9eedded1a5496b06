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

    Sample i has P_i tokens of its prompt and R_i of its response. A column of response tokens has
    R = sum(R_i) entries: those of the first sample, then those of the second, and so on. `segments` says of
    which sample each is.

    core makes it of the scored groups of a step (`rlcore.rollout.batch.to_batch`). An estimator gets the
    whole batch, on the CPU; a loss or a correction gets a micro-batch of it, on the trainer's device. Nothing
    changes a batch in place. A column that does not exist is a `PluginError`, which lists those that do.

        >>> import torch
        >>> from rlcore import TrainBatch
        >>> batch = TrainBatch(
        ...     tokens=torch.tensor([17, 11, 18, 1, 17, 18]),
        ...     prompt_lengths=torch.tensor([2, 1]),
        ...     response_lengths=torch.tensor([2, 1]),
        ...     per_token={"loss_mask": torch.ones(3)},
        ...     per_sample={"reward": torch.tensor([1.0, 0.0])},
        ... )
        >>> batch.segments.tolist()
        [0, 0, 1]
        >>> batch.per_sample["reward"][batch.segments].tolist()
        [1.0, 1.0, 0.0]
    """

    tokens: Tensor
    """int64 [sum(P_i + R_i)]: prompt then response, sample after sample."""
    prompt_lengths: Tensor
    """int64 [B]: each P_i."""
    response_lengths: Tensor
    """int64 [B]: each R_i. It may be 0."""
    per_token: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns [R], float32 unless they say otherwise. Of rollouts it always has:

    - `loss_mask`: 1 for a live token, else 0;
    - `rollout_log_probs`: the engine's;
    - `rewards`: a scalar reward sits on the last live token of its sample;
    - `fresh`: 1 where trainer and engine had the same weights;
    - those of `rlcore.Input` that a part's config `needs`, and `Sample.extras` of tokens;
    - from the estimator on, `advantages`, `weights` (the factor of the token's loss: it holds the mask and
      the denominator) and, with a critic, `returns`.
    """
    per_sample: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns [B], int64 unless they say otherwise. Of rollouts it always has:

    - `reward` (float32): the scalar reward;
    - `position`: the sample's place in the whole batch;
    - `group`, `rollout`: numbers from 0, equal for the samples of one group, of one rollout;
    - `minibatch`: which optimizer step of the batch trains on it, from 0;
    - `version`: of the weights that sampled its first token;
    - what is declared by `Input.GREEDY_REWARD`, `--metadata-columns` and `Sample.extras`.

    It may have `unit`: samples of one unit share a rank, a mini-batch and a micro-batch. It may have `cost`
    (float64): what ranks and micro-batches get equal sums of, in place of tokens.
    """
    per_input: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns [sum(P_i + R_i)], one entry for each of `tokens`; `ROUTED_EXPERTS` is the one that there may
    be. They stay on the rank of their samples.
    """

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
        """A copy with more (or replaced) columns: [R], and [B]. Further dimensions may follow the first."""
        return replace(
            self,
            per_token={**self.per_token, **(per_token or {})},
            per_sample={**self.per_sample, **(per_sample or {})},
        )

    def select(self, rows: Sequence[int]) -> TrainBatch:
        """The samples `rows`, in that order, as a batch of their own. For a batch on the CPU."""
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
