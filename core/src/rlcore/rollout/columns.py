"""Columns of a batch beyond core's own: extras of the samples, and numbers of the prompts' metadata."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.api.columns import SAMPLE_INPUTS, TOP_COLUMNS, Column, DType, Input, Per
from rlcore.api.errors import DataError, PluginError
from rlcore.api.types import Prompt, Sample

DTYPES: Mapping[str, DType] = {"b": "float32", "f": "float32", "i": "int64", "u": "int64"}
"""numpy's kind of a value → the dtype of its column."""

CORE_COLUMNS = frozenset(
    {
        *("loss_mask", "rollout_log_probs", "rewards", "fresh", "advantages", "returns"),
        *("weights", "value_weights", "position", "group", "rollout", "minibatch", "reward", "version"),
        *("place", "trained_log_probs", "scored", "chosen", "unit", "policy", *TOP_COLUMNS),
        *(set(Input) - SAMPLE_INPUTS),
    }
)
"""The columns that core makes itself. An extra of such a name is refused."""

Tables = dict[Per, dict[str, Tensor]]
"""Columns by what their entries belong to, and by name."""


def extra_columns(samples: Sequence[Sample], columns: Mapping[str, Column], reserved: Set[str]) -> Tables:
    """The columns of the samples' extras, as `columns` declares them, and the lengths of those per item.

    Without a declaration, an extra that is a number makes a column per sample, and one with an entry for each
    response token a column per token. Raises `PluginError` for what is no such column, and for a name of
    core's own, or one that is `reserved` for a column of the metadata.
    """
    names = samples[0].extras.keys() if samples else ()
    for sample in samples:
        if sample.extras.keys() != names:
            raise PluginError(
                f"Sample {sample.rollout_id} has the extras {sorted(sample.extras)}, the first one"
                f" {sorted(names)}: all samples of a batch must have the same."
            )
    lengths = {columns[name].lengths for name in names if name in columns} - {""}
    if clash := sorted(
        (CORE_COLUMNS | reserved).intersection({*names, *lengths}) | lengths.intersection(names)
    ):
        maker = "--metadata-columns" if clash[0] in reserved else "core"
        raise PluginError(f"The extra {clash[0]!r} has the name of a column that {maker} makes; rename it.")
    tables: Tables = {"token": {}, "sample": {}, "input": {}, "item": {}}
    for name in names:
        values = _arrays(samples, name)
        column = columns.get(name) or _inferred(name, values, samples)
        counts = _counts(name, values, samples, column)
        if column.per == "item":
            lengths_B = torch.tensor(counts, dtype=torch.int64)
            if not torch.equal(tables["sample"].setdefault(column.lengths, lengths_B), lengths_B):
                raise PluginError(f"The extra {name!r} has other numbers of items than {column.lengths!r}.")
        tables[column.per][name] = _tensor(name, values, column)
    return tables


def _arrays(samples: Sequence[Sample], name: str) -> list[NDArray[Any]]:
    """The extra `name` of each sample."""
    try:
        values = [np.asarray(sample.extras[name]) for sample in samples]
    except ValueError as error:
        raise PluginError(f"The extra {name!r} has rows of several lengths: {error}.") from error
    if any(value.dtype.kind not in DTYPES for value in values):
        raise PluginError(f"The extra {name!r} is not made of numbers.")
    return values


def _inferred(name: str, values: Sequence[NDArray[Any]], samples: Sequence[Sample]) -> Column:
    """The declaration of an extra that has none."""
    if all(value.ndim == 0 for value in values):
        return Column(per="sample")
    if [value.shape[:1] for value in values] == [(len(sample.response_ids),) for sample in samples]:
        return Column(per="token")
    raise PluginError(
        f"The extra {name!r} is neither a number nor an entry for each response token; declare it in the "
        "`columns` of the generator's config."
    )


def _counts(
    name: str, values: Sequence[NDArray[Any]], samples: Sequence[Sample], column: Column
) -> list[int]:
    """How many entries each of `values` has. Raises `PluginError` where `column` wants others."""
    if column.per == "sample":
        return [1] * len(values)
    counts = [len(value) if value.ndim else -1 for value in values]
    for sample, count in zip(samples, counts, strict=True):
        tokens = len(sample.response_ids) + (len(sample.prompt_ids) if column.per == "input" else 0)
        if count < 0 or (column.per != "item" and count != tokens):
            raise PluginError(
                f"The extra {name!r} of sample {sample.rollout_id} has {max(count, 0)} entries, expected "
                f"{'a list' if column.per == 'item' else tokens}, one per {column.per}."
            )
    return counts


def _tensor(name: str, values: Sequence[NDArray[Any]], column: Column) -> Tensor:
    """All entries of `values`, one after the other."""
    # An array without entries tells neither the dtype nor the shape of the column.
    filled = [value for value in values if value.size]
    entries = [value[None] for value in filled] if column.per == "sample" else filled
    shapes = {value.shape[1:] for value in entries} | ({column.shape} if column.shape is not None else set())
    if len(shapes) > 1:
        raise PluginError(f"The extra {name!r} has entries of several shapes: {sorted(shapes)}.")
    shape = shapes.pop() if shapes else ()
    whole = np.concatenate(entries) if entries else np.empty((0, *shape), values[0].dtype)
    dtype = column.dtype or DTYPES[whole.dtype.kind]
    # numpy has no bfloat16.
    plain = whole.astype("float32" if dtype == "bfloat16" else dtype)
    return torch.from_numpy(plain).to(getattr(torch, dtype))


def metadata_columns(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Tensor]:
    """Per-sample columns, float32 [B], or int64 where all are whole. Raises as `check_metadata`."""
    check_metadata((sample.prompt for sample in samples), names)
    columns = {name: np.asarray([sample.prompt.metadata[name] for sample in samples]) for name in names}
    return {name: torch.from_numpy(array.astype(DTYPES[array.dtype.kind])) for name, array in columns.items()}


def check_metadata(prompts: Iterable[Prompt], names: Sequence[str]) -> None:
    """Each prompt's metadata has a number of each name. Raises `DataError` naming the prompt."""
    if not names:
        return
    if clash := sorted((CORE_COLUMNS | SAMPLE_INPUTS).intersection(names)):
        raise DataError(f"--metadata-columns: found {clash[0]!r}, which core makes itself; rename it.")
    for prompt in prompts:
        for name in names:
            value = prompt.metadata.get(name)
            if not isinstance(value, int | float) or (isinstance(value, int) and abs(value) >= 2**63):
                keys = ", ".join(map(repr, prompt.metadata)) or "nothing"
                what = f"holds {keys}" if value is None else f"has {value!r} there"
                raise DataError(
                    f"--metadata-columns {name}: expected a number, of 64 bits where it is whole, in the "
                    f"metadata of each prompt, but that of {prompt.prompt_id!r} {what}."
                )


def for_trackers(
    samples: Sequence[Sample],
    columns: Mapping[str, Mapping[str, Tensor]],
    declarations: Mapping[str, Column],
) -> list[Sample]:
    """`samples`, a batch in its order, with their parts of per-token `columns` [R] among their extras.

    `columns`: by policy, of its samples. Extras that models alone read are left out: they are large, and say
    nothing to people.
    """
    hidden = {name for name, column in declarations.items() if column.reach != "all"}
    if not columns and not hidden:
        return list(samples)
    parts: dict[str, dict[str, Iterator[Tensor]]] = {}
    # What a frozen policy sampled, of which nothing is trained on, is among the run's own.
    policies = [sample.policy if sample.policy in columns else "" for sample in samples]
    for policy, own in columns.items():
        lengths = [len(s.response_ids) for s, whose in zip(samples, policies, strict=True) if whose == policy]
        parts[policy] = {name: iter(column.split(lengths)) for name, column in own.items()}
    shown = []
    for sample, policy in zip(samples, policies, strict=True):
        extras = {name: value for name, value in sample.extras.items() if name not in hidden}
        extras |= {name: next(part).tolist() for name, part in parts.get(policy, {}).items()}
        shown.append(sample.but(extras=extras))
    return shown
