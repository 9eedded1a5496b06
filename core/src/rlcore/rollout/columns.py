"""Columns of a batch beyond core's own: extras of the samples, and numbers of the prompts' metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.api.batch import ROUTED_EXPERTS
from rlcore.api.errors import DataError, PluginError
from rlcore.api.inputs import TEACHER_TOP_LOG_PROBS, TOP_IDS, Input
from rlcore.api.types import Prompt, Sample

KINDS = {"b": np.float32, "f": np.float32, "i": np.int64, "u": np.int64}
"""numpy's kind of a value → the dtype of its column."""

OWN = frozenset(
    {
        *("loss_mask", "rollout_log_probs", "rewards", "fresh", "advantages", "returns"),
        *("weights", "value_weights", "position", "group", "rollout", "minibatch", "reward", "version"),
        *("place", "trained_log_probs"),
        *("chosen", "unit", TOP_IDS, TEACHER_TOP_LOG_PROBS, ROUTED_EXPERTS),
        *(Input.OLD_LOG_PROBS, Input.REFERENCE_LOG_PROBS, Input.VALUES),
    }
)
"""The columns that core makes itself. An extra of such a name is refused."""
AS_EXTRAS = frozenset({Input.TEACHER_LOG_PROBS, Input.GREEDY_REWARD})
"""Those of these columns that core makes from extras of its own."""


def extra_columns(
    samples: Sequence[Sample], responses: NDArray[np.int64], metadata: Sequence[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(per-token columns, per-sample columns) of the samples' extras; `responses` int64 [B]: their lengths.

    Raises `PluginError` for what is no column, and for a name of core's own, or of the `metadata`'s columns.
    """
    names = samples[0].extras.keys() if samples else ()
    for sample in samples:
        if sample.extras.keys() != names:
            raise PluginError(
                f"Sample {sample.rollout_id} has the extras {sorted(sample.extras)}, the first one"
                f" {sorted(names)}: all samples of a batch must have the same."
            )
    if taken := sorted(OWN.union(metadata).intersection(names)):
        maker = "core" if taken[0] in OWN else "--metadata-columns"
        raise PluginError(f"The extra {taken[0]!r} has the name of a column that {maker} makes; rename it.")
    per_token: dict[str, Tensor] = {}
    per_sample: dict[str, Tensor] = {}
    for name in names:
        try:
            values = [np.asarray(sample.extras[name]) for sample in samples]
        except ValueError as error:
            raise PluginError(f"The extra {name!r} has rows of several lengths: {error}.") from error
        if any(value.dtype.kind not in KINDS for value in values):
            raise PluginError(f"The extra {name!r} is not made of numbers.")
        # An empty array does not tell the dtype and shape of the column.
        filled = [value for value in values if value.size] or values
        dtype = KINDS[np.result_type(*filled).kind]
        if all(value.ndim == 0 for value in values):
            per_sample[name] = torch.from_numpy(np.stack(values).astype(dtype))
        elif [value.shape[:1] for value in values] == [(count,) for count in responses]:
            if len({value.shape[1:] for value in filled}) > 1:
                raise PluginError(f"The extra {name!r} has entries of several shapes.")
            per_token[name] = torch.from_numpy(np.concatenate(filled).astype(dtype))
        else:
            raise PluginError(f"The extra {name!r} is neither a number nor an entry for each response token.")
    return per_token, per_sample


def metadata_columns(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Tensor]:
    """Per-sample columns, float32 [B], or int64 where all are whole. Raises as `check_metadata`."""
    check_metadata((sample.prompt for sample in samples), names)
    columns = {name: np.asarray([sample.prompt.metadata[name] for sample in samples]) for name in names}
    return {name: torch.from_numpy(found.astype(KINDS[found.dtype.kind])) for name, found in columns.items()}


def check_metadata(prompts: Iterable[Prompt], names: Sequence[str]) -> None:
    """Each prompt's metadata has a number of each name. Raises `DataError` naming the prompt."""
    if not names:
        return
    if taken := sorted((OWN | AS_EXTRAS).intersection(names)):
        raise DataError(f"--metadata-columns: found {taken[0]!r}, which core makes itself; rename it.")
    for prompt in prompts:
        for name in names:
            value = prompt.metadata.get(name)
            if not isinstance(value, int | float) or (isinstance(value, int) and abs(value) >= 2**63):
                there = ", ".join(map(repr, prompt.metadata)) or "nothing"
                what = f"holds {there}" if value is None else f"has {value!r} there"
                raise DataError(
                    f"--metadata-columns {name}: expected a number, of 64 bits where it is whole, in the "
                    f"metadata of each prompt, but that of {prompt.prompt_id!r} {what}."
                )


def with_columns(samples: Sequence[Sample], columns: Mapping[str, Tensor]) -> list[Sample]:
    """`samples`, a batch in its order, with their parts of per-token `columns` [R] among their extras."""
    if not columns:
        return list(samples)
    lengths = [len(sample.response_ids) for sample in samples]
    parts = {name: column.split(lengths) for name, column in columns.items()}
    return [
        sample.but(extras={**sample.extras, **{name: parts[name][row].tolist() for name in parts}})
        for row, sample in enumerate(samples)
    ]
