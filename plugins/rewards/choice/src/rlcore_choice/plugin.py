"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The reward."""
    yield Component(
        name="multiple_choice",
        factory="rlcore_choice.reward:MultipleChoice",
        summary="1 where the letter that the response settles on is the label's, else 0",
        config="rlcore_choice.config:MultipleChoiceConfig",
    )
