"""`SampleView`: what a tracker shows of samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore import Json, Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVED = "advantages"
"""An extra of the samples of a rollout that is saved."""


@dataclass(frozen=True)
class SampleView:
    """What a tracker shows of the samples of a rollout, or of a set that was evaluated.

    `COLUMNS`: the names of a row's values.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("prompt_id", "prompt", "response", "label", "score")

    samples: Sequence[Sample]

    def rows(self, most: int) -> list[list[Json]]:
        """The first `most` samples, each as the values of `COLUMNS`: texts, and the score or None.

        A chat, and a label that is no text, is JSON text.
        """
        return [_row(sample) for sample in self.samples[:most]]

    @property
    def distributions(self) -> Mapping[str, list[float]]:
        """`reward` of the samples that have one, and `response_tokens`; without those that are empty."""
        values = {
            "reward": [sample.score.value for sample in self.samples if sample.score is not None],
            "response_tokens": [float(len(sample.response_ids)) for sample in self.samples],
        }
        return {name: some for name, some in values.items() if some}

    def figure(self) -> Figure:
        """A histogram of each of `distributions`, side by side. Needs matplotlib; on no screen."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3), layout="constrained")
        shown = self.distributions
        if not shown:
            return figure
        every = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, (name, values) in zip(every, shown.items(), strict=True):
            axes.hist(values, bins=32)
            axes.set(xlabel=name, ylabel="samples")
            axes.spines[["top", "right"]].set_visible(False)
        return figure

    @property
    def saved(self) -> bool:
        """Whether they are of a rollout that the run saves (`--save-rollouts-every`)."""
        return bool(self.samples) and SAVED in self.samples[0].extras


def _row(sample: Sample) -> list[Json]:
    prompt, score = sample.prompt, sample.score
    value = None if score is None else score.value
    return [prompt.prompt_id, _text(prompt.text), sample.text, _text(prompt.label), value]


def _text(value: Json | Sequence[Mapping[str, Json]]) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
