"""The agent of `rollout_workers.py`: turns with a tool, and a score of its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from rlcore import GenerationContext, RewardStatus, Sample, Score
from rlcore_tools.config import ToolsConfig
from rlcore_tools.generator import Tools

SHELVES = {
    f"shelf {number}": [f"a book of {number * 7 + place} pages" for place in range(12)]
    for number in range(40)
}
_FACT = re.compile(r"(?P<what>\w+) (?:of|with) (?P<number>\d+) pages")
_ANSWER = re.compile(r"answer is (\d+)")


def look(shelf: str, least: int = 0, most: int = 1000) -> str:
    """List the books of a shelf.

    Args:
        shelf: its name
        least: the fewest pages of a book that is listed
        most: the most pages of a book that is listed
    """
    books = [book for book in SHELVES.get(shelf, ()) if least <= int(_FACT.search(book)["number"]) <= most]  # type: ignore[index] # each says its pages
    return json.dumps({"shelf": shelf, "books": books}, indent=1)


class Agent(Tools):
    """The generator `tools`, whose samples come scored by regular expressions over all that was said."""

    def __init__(self, config: ToolsConfig) -> None:
        super().__init__(config)
        self.name = "agent"

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One trajectory with its score."""
        made = await super().generate(ctx, sample)
        said = ctx.tokenizer.decode(made.response_ids, skip_special_tokens=False)
        facts = {found["number"] for found in _FACT.finditer(said)}
        answer = _ANSWER.search(made.text)
        score = Score(
            value=float(answer is not None and answer[1] in facts), parts={"facts": float(len(facts))}
        )
        return replace(made, reward_status=RewardStatus.SCORED, score=score)
