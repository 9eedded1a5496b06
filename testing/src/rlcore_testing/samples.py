"""Samples for tests, of which a test says what it is about and nothing else."""

from collections.abc import Sequence
from typing import Any

from rlcore.api.types import Prompt, Sample, Score

PROMPT = Prompt(prompt_id="p", text="?")


def sample_of(response: Sequence[int] = (), *, group_id: int = 0, index: int = 0, **fields: Any) -> Sample:
    """A sample with this response, whose tokens are all live, to a prompt of one token.

    `fields`: what is otherwise, and what else it has.
    """
    made: dict[str, Any] = {
        "prompt": PROMPT,
        "prompt_ids": (1,),
        "rollout_id": f"{group_id}.{index}",
        "loss_mask": (1,) * len(response),
    }
    return Sample(group_id=group_id, index=index, response_ids=tuple(response), **{**made, **fields})


SCORED = sample_of(
    prompt=Prompt(prompt_id="p", text="12", label="21"),
    prompt_ids=(1, 2),
    text="2<1>",
    score=Score(value=0.5),
)
"""An answer, as a tracker sees it."""
