"""megatron's notation of a pipeline: `--megatron.pipeline-model-parallel-layout`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

from rlcore import ConfigError
from rlcore_megatron.pipeline import LAYOUT, PIPELINE, flag, size

_LETTERS = {"embedding": "E", "loss": "L", "decoder": "t", "mtp": "m"}


def layout_rows(fields: Mapping[str, Any]) -> Sequence[str]:
    """The chunks that the layout names, in the model's order: such as `Et`, `tt`, `L`.

    Those of stage s are every n-th from s on, of n stages. ConfigError.
    """
    text, stages = str(fields[LAYOUT]), size(fields, PIPELINE)
    found = f"{flag(LAYOUT)}: found {text!r}"
    try:
        parsed = PipelineParallelLayerLayout.parse_str_to_list(text)
    except AssertionError:
        raise ConfigError(
            f"{found}, expected stages divided by |, of E (embedding), t (a layer) and L (loss), such as "
            "'Ett|(ttt|)*2,tL'."
        ) from None
    rows = ["".join(_LETTERS[layer.name] for layer in row) for row in parsed]
    whole = "".join(rows)
    if len(rows) % stages:
        raise ConfigError(f"{found}, {len(rows)} stages, expected a multiple of {PIPELINE} ({stages}).")
    if "m" in whole:
        raise ConfigError(f"{found}, but layers for multi-token prediction (m) are left out of every model.")
    if not (whole.startswith("E") and whole.endswith("L") and whole.count("E") == whole.count("L") == 1):
        raise ConfigError(f"{found}, expected one E, at the start, and one L, at the end.")
    if "" in rows:
        raise ConfigError(f"{found}, whose stage {rows.index('')} is empty.")
    return rows
