"""What a recipe trains on."""

from enum import StrEnum


class TrainsOn(StrEnum):
    """`ROLLOUTS`: what the policy answers, and a reward judges. Given by the data: `RESPONSES`, one to each

    prompt, or `PAIRS`, a chosen and a rejected one.
    """

    ROLLOUTS = "rollouts"
    RESPONSES = "given responses"
    PAIRS = "given pairs"

    @property
    def per_prompt(self) -> int:
        """Responses that the data give to each prompt."""
        return {"rollouts": 0, "given responses": 1, "given pairs": 2}[self.value]
