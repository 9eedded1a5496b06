"""What a function gets by the names of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore import Sample

LABELS = ("label", "answer", "ground_truth", "solution", "target")
"""Parameters that get the prompt's label, unless its metadata has a key of that name."""

SAMPLE_PARAMETERS: Mapping[str, Callable[[Sample], Any]] = {
    "sample": lambda sample: sample,
    "prompt": lambda sample: sample.prompt.text,
    "response": lambda sample: sample.text,
    "solution_str": lambda sample: sample.text,
    "metadata": lambda sample: sample.prompt.metadata,
    "extra_info": lambda sample: sample.prompt.metadata,
    "data_source": lambda sample: sample.prompt.metadata.get("data_source"),
}
"""Parameters of a function that is called for each sample."""

GROUP_PARAMETERS: Mapping[str, Callable[[Sample], Any]] = {
    "samples": lambda sample: sample,
    "prompts": lambda sample: sample.prompt.text,
    "responses": lambda sample: sample.text,
    # as TRL passes it: a text, or messages if the prompt consists of messages
    "completions": lambda sample: (
        sample.text
        if isinstance(sample.prompt.text, str)
        else [{"role": "assistant", "content": sample.text}]
    ),
    "completion_ids": lambda sample: list(sample.response_ids),
    "solution_strs": lambda sample: sample.text,
    "ground_truths": lambda sample: sample.prompt.label,
    "extra_infos": lambda sample: sample.prompt.metadata,
    "data_sources": lambda sample: sample.prompt.metadata.get("data_source"),
}
"""A function with one of these parameters is called once for each group; then each parameter is a list."""

SLIME = (frozenset({"args", "sample"}), frozenset({"args", "samples"}))
"""The parameters of slime's functions for a sample, and for a group."""

TRL_ALWAYS = ("prompts", "completions", "completion_ids")
"""What TRL passes to every function, beside the columns."""

TRL_LOGS = frozenset({"log_metric", "log_extra"})
"""Functions that TRL gives: for a number, which becomes a part, and for texts, which go nowhere."""

TOKENIZER, SPANS = "tokenizer", "token_spans"
