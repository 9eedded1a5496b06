"""The scheduler of the `local` engine in this process, without its thread and its server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlcore.engines.local.requests import SamplingParams
from rlcore.engines.local.scheduler import Scheduler
from rlcore.engines.local.sequences import Sequence, noise_key
from rlcore.engines.local.weights import Weights

END = 2
"""The token that ends a sample."""


class Local:
    """Samples go in, and come out finished."""

    def __init__(self, path: Path, *, max_batch: int = 8, dtype: torch.dtype = torch.float32) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.scheduler = Scheduler(max_batch, self._take)
        self.scheduler.weights = Weights(path, dtype, None)

    def _take(self, answers: list[tuple[Sequence, dict[str, Any]]]) -> None:
        self.answers.update({one.rid: answer for one, answer in answers})

    @staticmethod
    def sequence(rid: str, prompt: list[int], *, score_from: int | None = None, **params: Any) -> Sequence:
        """A sample with a seed of `sampling_seed` (0)."""
        checked = SamplingParams(**{"max_new_tokens": 12, **params})
        assert checked.max_new_tokens is not None
        return Sequence(
            rid=rid,
            request=rid,
            order=0,
            prompt=prompt,
            params=checked,
            key=noise_key(str(checked.sampling_seed or 0), prompt, 0),
            limit=checked.max_new_tokens,
            stop_ids=frozenset() if checked.ignore_eos else frozenset({END, *checked.stop_token_ids}),
            return_logprob=True,
            score_from=score_from,
        )

    @torch.inference_mode()
    def run(self, sequences: list[Sequence], *, steps: int | None = None) -> dict[str, dict[str, Any]]:
        """The answers by rid, after all have ended or after some steps."""
        self.scheduler.add(sequences)
        while (self.scheduler.running or self.scheduler.waiting) and steps != 0:
            self.scheduler.step()
            steps = None if steps is None else steps - 1
        self.scheduler._hand_over()
        return self.answers
