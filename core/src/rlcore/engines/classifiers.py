"""Which models are sequence classifiers: they give scores of a text, as reward models do, and no tokens."""

from collections.abc import Mapping
from typing import Any

CLASSIFIER_HEAD = "ForSequenceClassification"
"""The suffix that transformers gives such an architecture: one layer behind the last token."""
REWARD_HEAD = "ForRewardModel"
"""The suffix of another head that some engines serve: two layers and one score."""
DEFAULT_LABELS = 2
"""How many labels transformers assumes where config.json names none."""


def architecture_of(hf_config: Mapping[str, Any]) -> str:
    """The first architecture that config.json names; empty: it names none."""
    named = hf_config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def classifier_of(hf_config: Mapping[str, Any]) -> str | None:
    """The architecture in config.json if it is a sequence classifier, else None."""
    first = architecture_of(hf_config)
    return first if first.endswith((CLASSIFIER_HEAD, REWARD_HEAD)) else None


def scores_of(hf_config: Mapping[str, Any]) -> int:
    """How many scores the sequence classifier of this config.json gives a text."""
    labels = hf_config.get("id2label")
    if (classifier_of(hf_config) or "").endswith(REWARD_HEAD):
        return 1
    return len(labels) if isinstance(labels, Mapping) else int(hf_config.get("num_labels") or DEFAULT_LABELS)
