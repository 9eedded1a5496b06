"""`TrainBatch`: samples as flat tensors, with columns that are not a fixed list."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlcore.api.columns import Column, Per, Reach
from rlcore.api.errors import PluginError

_SHORT_RUN = 256
"""Entries. Runs that are shorter on average are taken by an index for each entry."""


_UNDECLARED: Mapping[Per, Column] = {"token": Column(per="token"), "sample": Column(per="sample")}
"""The declaration of a column that has none."""


class Columns(dict[str, Tensor]):
    """Columns by name. One that does not exist is a `PluginError`, which says what there is."""

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
      the denominator) and, with a value model, `returns`.
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
    """Columns [sum(P_i + R_i)], one entry for each of `tokens`. Each is declared in `columns`."""
    per_item: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns [N], the items of the first sample, then those of the second, and so on; N is the sum of the
    per-sample column that the declaration calls `lengths`. Each is declared in `columns`.
    """
    columns: Mapping[str, Column] = field(default_factory=dict)
    """The declaration of each column, by name. The batch adds one for columns per token and per sample that
    have none: they reach all.
    """

    def __post_init__(self) -> None:
        columns: dict[str, Column] = {}
        for per, table in self.tables.items():
            object.__setattr__(self, f"per_{per}", Columns(table))
            for name in table:
                column = self.columns.get(name) or _UNDECLARED.get(per)
                other = columns.get(name, column)
                if column is None or other is not column or column.per != per:
                    found = f"that name for one per {other.per}" if other else "none"
                    raise PluginError(f"The column {name!r} per {per} needs a declaration; found {found}.")
                columns[name] = column
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return int(self.prompt_lengths.numel())

    @property
    def lengths(self) -> Tensor:
        """P_i + R_i, int64 [B]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def tables(self) -> dict[Per, Mapping[str, Tensor]]:
        """All columns, by what their entries belong to."""
        return {
            "token": self.per_token,
            "sample": self.per_sample,
            "input": self.per_input,
            "item": self.per_item,
        }

    @property
    def costs(self) -> list[float]:
        """The share of the work of each sample: the column `cost`, or its tokens."""
        values: list[float] = self.per_sample.get("cost", self.lengths).tolist()
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

    def entries(self, column: Column) -> Tensor:
        """How many entries of `column` each sample has, int64 [B]."""
        if column.per == "sample":
            return torch.ones_like(self.response_lengths)
        if column.per == "item":
            return self.per_sample[column.lengths]
        return self.response_lengths if column.per == "token" else self.lengths

    def with_columns(
        self,
        per_token: Mapping[str, Tensor] | None = None,
        per_sample: Mapping[str, Tensor] | None = None,
        *,
        per_input: Mapping[str, Tensor] | None = None,
        per_item: Mapping[str, Tensor] | None = None,
        columns: Mapping[str, Column] | None = None,
    ) -> "TrainBatch":
        """A copy with more (or replaced) columns. Further dimensions may follow the first.

        `columns`: their declarations; each of `per_input` and `per_item` needs one.
        """
        return replace(
            self,
            per_token={**self.per_token, **(per_token or {})},
            per_sample={**self.per_sample, **(per_sample or {})},
            per_input={**self.per_input, **(per_input or {})},
            per_item={**self.per_item, **(per_item or {})},
            columns={**self.columns, **(columns or {})},
        )

    def reaching(self, *reach: Reach) -> "TrainBatch":
        """The batch with those of its columns whose declared `reach` is one of these."""
        if all(column.reach in reach for column in self.columns.values()):
            return self
        tables: dict[str, Any] = {
            f"per_{per}": {name: table[name] for name in table if self.columns[name].reach in reach}
            for per, table in self.tables.items()
        }
        return replace(self, **tables)

    def select(self, rows: Sequence[int]) -> "TrainBatch":
        """The samples `rows`, in that order, as a batch of their own. For a batch on the CPU."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        takers: dict[tuple[Per, str], Callable[[Tensor], Tensor]] = {
            ("token", ""): _taker(self.response_lengths, index),
            ("sample", ""): lambda column: column[index],
            ("input", ""): _taker(self.lengths, index),
        }
        for name in self.per_item:
            lengths = self.columns[name].lengths
            takers["item", lengths] = _taker(self.per_sample[lengths], index)

        def take(name: str, tensor: Tensor) -> Tensor:
            column = self.columns[name]
            return takers[column.per, column.lengths](tensor)

        return TrainBatch(
            tokens=takers["input", ""](self.tokens),
            prompt_lengths=self.prompt_lengths[index],
            response_lengths=self.response_lengths[index],
            **self._changed(take),
            columns=self.columns,
        )

    def to(self, device: torch.device) -> "TrainBatch":
        """The batch with all of its tensors on `device`; the batch itself where they are there."""
        if self.tokens.device == device:
            return self
        return TrainBatch(
            tokens=self.tokens.to(device),
            prompt_lengths=self.prompt_lengths.to(device),
            response_lengths=self.response_lengths.to(device),
            **self._changed(lambda _, tensor: tensor.to(device)),
            columns=self.columns,
        )

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
        """The fields of the columns, with what `change` makes of each."""
        return {
            f"per_{per}": {name: change(name, tensor) for name, tensor in table.items()}
            for per, table in self.tables.items()
        }


def _taker(lengths: Tensor, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that takes the runs `rows` of a column whose runs have `lengths`, neighbors at once."""
    ends = torch.cumsum(lengths, 0)[rows]
    starts = ends - lengths[rows]
    is_first = torch.ones(len(rows), dtype=torch.bool)
    is_first[1:] = starts[1:] != ends[:-1]
    first = starts[is_first]
    runs = ends[is_first.roll(-1)] - first
    if int(runs.sum()) < _SHORT_RUN * len(runs):
        index = token_ranges(first, runs)
        return lambda column: column[index]
    # An index for each entry of long runs would take longer, and more memory than the column.
    places = list(zip(first.tolist(), runs.tolist(), strict=True))
    return lambda column: torch.cat([column[:0], *(column.narrow(0, *place) for place in places)])


def token_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """`[s0, s0+1, …, s0+l0-1, s1, …]`: the flat indices of runs of tokens."""
    total = int(lengths.sum())
    offsets = torch.repeat_interleave(starts - (torch.cumsum(lengths, 0) - lengths), lengths)
    return torch.arange(total) + offsets
