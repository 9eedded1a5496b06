"""The settings of `single_turn`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from rlcore import GeneratorConfig, Json, Prompt

if TYPE_CHECKING:
    from rlcore import Neighbor, RunConfig


class SingleTurnConfig(GeneratorConfig):
    """Who answers."""

    policy_key: str = Field(
        "",
        description="key of a prompt's metadata that names the policy which answers; else the run's own does",
    )

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """There must be another policy to name."""
        if self.policy_key and not run.policies:
            yield (
                f"--generator.policy-key: found {self.policy_key!r}, but there is one policy; leave it out, "
                "or train a further one (--policy.NAME.lr)."
            )

    @property
    def policy_advice(self) -> str | None:
        """A key."""
        return None if self.policy_key else "add --generator.policy-key KEY"

    def policy_of(self, prompt: Prompt) -> Json:
        """What the metadata have under the key; a null names none."""
        return prompt.metadata.get(self.policy_key) if self.policy_key else None
