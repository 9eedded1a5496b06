"""For tests: the engine as a part, and its scheduler in this process, without its thread and its server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlcore import Part
from rlcore_local.config import LocalConfig
from rlcore_local.requests import SamplingParams
from rlcore_local.scheduler import Scheduler
from rlcore_local.sequences import Sequence as Sampled, noise_keys
from rlcore_local.weights import Weights

END = 2
"""The token that ends a sample."""

LOCAL = Part(
    name="local",
    factory="rlcore_local.engine:LocalEngine",
    config=LocalConfig(start_limit_s=280.0, stop_grace_s=1.0),
)
"""The engine, for a busy machine."""


class Local:
    """Samples go in, and come out finished."""

    def __init__(
        self, path: Path, *, max_batch: int = 8, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.scheduler = Scheduler(max_batch, self._take)
        self.scheduler.weights = Weights(path, dtype, None, device)

    def _take(self, answers: list[tuple[Sampled, dict[str, Any]]]) -> None:
        for sequence, answer in answers:
            self.answers[sequence.rid] = answer

    @staticmethod
    def sequence(name: str, prompt: list[int], *, score_from: int | None = None, **params: Any) -> Sampled:
        """A sample with a seed of `sampling_seed` (0)."""
        checked = SamplingParams(**{"max_new_tokens": 12, **params})
        assert checked.max_new_tokens is not None
        return Sampled(
            rid=name,
            request=name,
            order=0,
            prompt=prompt,
            params=checked,
            key=noise_keys(str(checked.sampling_seed or 0), prompt, 1)[0],
            limit=checked.max_new_tokens,
            stop_ids=frozenset() if checked.ignore_eos else frozenset({END, *checked.stop_token_ids}),
            return_logprob=True,
            score_from=score_from,
        )

    @torch.inference_mode()
    def run(self, sequences: list[Sampled], *, steps: int | None = None) -> dict[str, dict[str, Any]]:
        """The answers by rid, after all have ended or after some steps."""
        self.scheduler.add(sequences)
        while (self.scheduler.running or self.scheduler.waiting) and steps != 0:
            self.scheduler.step()
            steps = None if steps is None else steps - 1
        self.scheduler._hand_over()
        return self.answers


def answers(path: Path, prompts: Sequence[Sequence[int]]) -> list[tuple[list[int], list[float]]]:
    """What the model in the directory `path` answers to each prompt: tokens, and their log-probs."""
    engine = Local(path)
    done = engine.run([engine.sequence(str(number), list(ids)) for number, ids in enumerate(prompts)])
    results: list[Mapping[str, Any]] = [done[str(number)] for number in range(len(prompts))]
    return [
        (result["output_ids"], [value for value, _, _ in result["meta_info"]["output_token_logprobs"]])
        for result in results
    ]
