"""How the layers of a model are divided between the stages of a pipeline."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore import ConfigError, flag_name

TABLE = "megatron"
PIPELINE, VIRTUAL = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
WITH_EMBEDDING, WITH_LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
LAYOUT = "pipeline_model_parallel_layout"
UNEVEN = (FIRST, LAST, WITH_EMBEDDING, WITH_LOSS, LAYOUT)
"""The fields that divide the layers unevenly."""

_REPEATED = re.compile(r"(?:\(([^()]+)\)|([^()]))\*(\d+)")
_ON = ("true", "1", "yes", "on", "t", "y")


def flag(name: str) -> str:
    """`--megatron.<field>`."""
    return flag_name(f"{TABLE}.{name}")


def size(fields: Mapping[str, Any], name: str) -> int:
    """The value of `name`, 1 where it is not given or none. ConfigError where it is no positive integer."""
    value = 1 if _value(fields, name) is None else fields[name]
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise ConfigError(f"{flag(name)}: found {value!r}, expected an integer of at least 1.")
    return int(value)


def is_on(fields: Mapping[str, Any], name: str) -> bool:
    """The value of a switch, which is off where it is not given."""
    return str(fields.get(name, False)).lower() in _ON


def chunk_layers(fields: Mapping[str, Any], layers: int) -> list[list[int]]:
    """How many of the model's `layers` each chunk of each stage has (one chunk, if not virtual).

    `fields`: as the user gave them. ConfigError, one sentence, where they don't divide the layers.
    """
    if _value(fields, LAYOUT) is not None:
        rows = layout_rows(fields)
        total = sum(row.count("t") for row in rows)
        if total != layers:
            raise ConfigError(f"{flag(LAYOUT)}: found {total} layers (t), the model has {layers}.")
        stages = size(fields, PIPELINE)
        return [[row.count("t") for row in rows[stage::stages]] for stage in range(stages)]
    chunks = size(fields, VIRTUAL)
    counts = _stage_counts(fields, layers)
    for place, count in enumerate(counts):
        if count % chunks:
            raise ConfigError(
                f"{flag(VIRTUAL)}: found {chunks}, expected a divisor of the layers of each stage; stage "
                f"{place} of {len(counts)} has {count} of the model's num_hidden_layers ({layers})"
                f"{_counted(fields)}."
            )
    divided = [[count // chunks] * chunks for count in counts]
    divided[0][0] -= is_on(fields, WITH_EMBEDDING)
    divided[-1][-1] -= is_on(fields, WITH_LOSS)
    return divided


def model_order(fields: Mapping[str, Any], layers: int) -> list[tuple[int, int]]:
    """(stage, its number of layers) of each chunk in the order of the model's layers; raises as above."""
    divided = chunk_layers(fields, layers)
    return [
        (stage, chunks[place]) for place in range(len(divided[0])) for stage, chunks in enumerate(divided)
    ]


def layout_rows(fields: Mapping[str, Any]) -> Sequence[str]:
    """The chunks that `pipeline_model_parallel_layout` names, in the model's order: such as `Et`, `tt`, `L`.

    Those of stage s are every n-th from s on, of n stages. The notation is megatron-core's. ConfigError.
    """
    text, stages = str(fields[LAYOUT]), size(fields, PIPELINE)
    whole = text.replace(",", "")
    for _ in range(2):  # what is in brackets may repeat letters
        whole = _REPEATED.sub(lambda match: (match[1] or match[2]) * int(match[3]), whole)
    rows = whole.split("|")
    start = f"{flag(LAYOUT)}: found {text!r}"
    if "m" in whole:
        raise ConfigError(
            f"{start}, but a layer for multi-token prediction (m) is always on the last stage; leave it out."
        )
    if not re.fullmatch(r"E[t|]*L", whole):
        raise ConfigError(
            f"{start}, expected stages divided by |, first E (the embedding), last L (the loss), between "
            "them t (a layer), such as 'Ett|(ttt|)*2,tL'."
        )
    if len(rows) % stages:
        raise ConfigError(f"{start}, {len(rows)} stages, expected a multiple of {PIPELINE} ({stages}).")
    if "" in rows:
        raise ConfigError(f"{start}, whose stage {rows.index('')} is empty.")
    return rows


def _value(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    return None if str(value).lower() == "none" else value


def _stage_counts(fields: Mapping[str, Any], layers: int) -> list[int]:
    """Layers of each stage, with embedding and loss where they are counted as layers."""
    stages = size(fields, PIPELINE)
    ends = {name: size(fields, name) for name in (FIRST, LAST) if _value(fields, name) is not None}
    if not ends:
        counted = layers + is_on(fields, WITH_EMBEDDING) + is_on(fields, WITH_LOSS)
        if counted % stages:
            raise ConfigError(
                f"{flag(PIPELINE)}: found {stages}, expected a divisor of the model's num_hidden_layers "
                f"({layers}){_counted(fields)}; or divide them unevenly, such as by {flag(LAST)}."
            )
        return [counted // stages] * stages
    middle, rest = stages - len(ends), layers - sum(ends.values())
    if middle < 0 or rest < middle or rest % max(1, middle) or (rest and not middle):
        named = " and ".join(f"{flag(name)} {count}" for name, count in ends.items())
        raise ConfigError(
            f"{named}: {rest} of the model's num_hidden_layers ({layers}) are left, which {middle} other "
            f"stages cannot share evenly."
        )
    counts = [rest // middle if middle else 0] * stages
    if FIRST in ends:
        counts[0] = ends[FIRST]
    if LAST in ends:
        counts[-1] = ends[LAST]
    return counts


def _counted(fields: Mapping[str, Any]) -> str:
    names = [name for name in (WITH_EMBEDDING, WITH_LOSS) if is_on(fields, name)]
    return f" and {' and '.join(flag(name) for name in names)}" if names else ""
